//! A wall clock that can be set, for one process: a server's or a client's.

use std::{
    fs,
    io::{Seek, SeekFrom, Write},
    path::PathBuf,
    process::Command,
};

use tempfile::TempDir;

use crate::launch::folder;

/// A wall clock of its own for every process that is started with its [`environment`](Self::environment). Other clocks
/// stay true.
#[derive(Debug)]
pub struct WallClock {
    folder: TempDir,
}

impl WallClock {
    /// A clock that is right. None on systems where that cannot be done: it takes Linux and a C compiler, without which
    /// there would be no Rust program either.
    ///
    /// # Panics
    /// When the compiler is there and fails.
    pub fn new() -> Option<Self> {
        if !cfg!(target_os = "linux") {
            return None;
        }
        let clock = Self { folder: folder() };
        clock.write(0, 0);
        clock.write(1, 0);
        clock.compile()?;
        Some(clock)
    }

    /// Sets it `milliseconds` before (if negative) or after the right time, at once.
    ///
    /// # Panics
    /// When the file system refuses.
    pub fn set(&self, milliseconds: i64) {
        self.write(0, milliseconds);
    }

    /// Holds it at so many microseconds since 1970, until it is held at another time.
    ///
    /// # Panics
    /// When the file system refuses.
    pub fn hold(&self, microseconds: u64) {
        self.write(1, i64::try_from(microseconds).expect("it is far below the limit"));
    }

    fn write(&self, number: u64, value: i64) {
        // In place, since it is mapped into the memory of others.
        let path = self.file();
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.as_mut().expect("a file can be made in our own folder");
        file.seek(SeekFrom::Start(8 * number)).expect("a file of ours can be written");
        file.write_all(&value.to_le_bytes()).expect("a file of ours can be written");
    }

    /// What a process has to be started with.
    pub fn environment(&self) -> [(&'static str, String); 3] {
        let path = |path: PathBuf| path.display().to_string();
        // A path in the first variable would end at a space, so it has a name and the second one the folder.
        [
            ("LD_PRELOAD", SHIM.to_owned()),
            ("LD_LIBRARY_PATH", path(self.folder.path().to_owned())),
            ("CLOCKSHIFT", path(self.file())),
        ]
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("shift")
    }

    fn shim(&self) -> PathBuf {
        self.folder.path().join(SHIM)
    }

    /// Compiles what stands before the C library's clocks; none without a compiler.
    fn compile(&self) -> Option<()> {
        let source = self.folder.path().join("wall_clock.c");
        fs::write(&source, include_str!("wall_clock.c")).expect("a file can be made in our own folder");
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-shared", "-fPIC", "-o"]).args([&self.shim(), &source]);
        let status = compiler.status().ok()?;
        assert!(status.success(), "cc cannot compile {}", source.display());
        Some(())
    }
}

const SHIM: &str = "lock-tests-wall-clock.so";
