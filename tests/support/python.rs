//! A Python with the lock libraries of others.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{process::Command, sync::Mutex, time::timeout};

/// A Python that has redis-py, python-redis-lock and redlock-py; none where there is no Python or no package index.
/// `beside` is the folder that cargo keeps for the tests; what was installed there once is used again.
///
/// # Panics
/// When `beside` cannot be written to.
pub async fn python(beside: &Path) -> Option<PathBuf> {
    // The tests of a program run at once, and the programs one after the other.
    static INSTALLING: Mutex<()> = Mutex::const_new(());
    let _installing = INSTALLING.lock().await;
    let folder = beside.join("python-clients");
    let (program, done) = (folder.join("bin").join("python"), folder.join("installed"));
    if done.exists() {
        return Some(program);
    }
    let run = async |program: &Path, arguments: &[&str]| {
        let output = timeout(INSTALLED_WITHIN, Command::new(program).args(arguments).kill_on_drop(true).output()).await;
        output.is_ok_and(|output| output.is_ok_and(|output| output.status.success()))
    };
    let made = run(Path::new("python3"), &["-m", "venv", &folder.display().to_string()]).await
        && run(&program, &["-m", "pip", "install", "-q", "redis", "python-redis-lock", "redlock-py"]).await;
    if !made {
        return None;
    }
    std::fs::write(done, "").expect("a file can be made there");
    Some(program)
}

const INSTALLED_WITHIN: Duration = Duration::from_secs(40);
