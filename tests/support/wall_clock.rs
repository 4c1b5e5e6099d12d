//! A wall clock that can be set, for one process: a server's or a client's.

use std::{fs, path::PathBuf, process::Command, sync::OnceLock};

use crate::launch::Folder;

/// A wall clock of its own for every process that is started with its [`environment`](Self::environment). Other clocks
/// stay true.
#[derive(Debug)]
pub struct WallClock {
    folder: Folder,
}

impl WallClock {
    /// A clock that is right. None on systems where that cannot be done: it takes Linux and a C compiler, without which
    /// there would be no Rust program either.
    ///
    /// # Panics
    /// When the compiler is there and fails.
    #[must_use]
    pub fn new() -> Option<Self> {
        if !cfg!(target_os = "linux") {
            return None;
        }
        let clock = Self { folder: Folder::create() };
        clock.set(0);
        clock.library()?;
        Some(clock)
    }

    /// Sets it `milliseconds` before (if negative) or after the right time, at once.
    ///
    /// # Panics
    /// When the file system refuses.
    pub fn set(&self, milliseconds: i64) {
        // In place, since it is mapped into the memory of others.
        let path = self.file();
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.as_mut().expect("a file can be made in our own folder");
        std::io::Write::write_all(file, &milliseconds.to_le_bytes()).expect("a file of ours can be written");
    }

    /// What a process has to be started with.
    ///
    /// # Panics
    /// Never: it is compiled by now.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, String); 2] {
        let library = self.library().expect("it was compiled before");
        [("LD_PRELOAD", library.display().to_string()), ("CLOCKSHIFT", self.file().display().to_string())]
    }

    fn file(&self) -> PathBuf {
        self.folder.path.join("shift")
    }

    /// Compiles the library, once for all tests of the process; none without a compiler.
    fn library(&self) -> Option<PathBuf> {
        static COMPILED: OnceLock<Option<(PathBuf, Folder)>> = OnceLock::new();
        let compile = || {
            let folder = Folder::create();
            let source = folder.path.join("wall_clock.c");
            fs::write(&source, include_str!("wall_clock.c")).expect("a file can be made in our own folder");
            let library = folder.path.join("wall_clock.so");
            let compiled =
                Command::new("cc").args(["-O2", "-shared", "-fPIC", "-o"]).args([&library, &source]).status();
            let status = compiled.ok()?;
            assert!(status.success(), "cc cannot compile {}", source.display());
            Some((library, folder))
        };
        COMPILED.get_or_init(compile).as_ref().map(|(library, _)| library.clone())
    }
}
