//! A calendar for a real server that can be set while it runs, forward or back.
//!
//! A small library, compiled when it is first needed and preloaded into the server, adds an offset to the server's real
//! time; the offset stands in a file that it has mapped. The server's monotonic clock is left alone.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::{BenchError, RedisOptions};

const SHIM: &str = include_str!("calendar/shim.c");

/// The calendar of one server. It must live at least as long as the server.
#[derive(Debug)]
pub struct Calendar {
    directory: TempDir,
    offset: File,
}

impl Calendar {
    /// Compiles the library, with the offset at zero. Needs a C compiler, which builds of this workspace need anyway.
    ///
    /// # Errors
    /// [`BenchError::Io`] if there is no compiler (`cc`), or no place to write to.
    pub fn new() -> Result<Self, BenchError> {
        let directory = tempfile::Builder::new()
            .prefix("redlock-calendar-")
            .tempdir()
            .map_err(BenchError::io("make a directory"))?;
        let source = directory.path().join("shim.c");
        fs::write(&source, SHIM).map_err(BenchError::io("write the calendar's source"))?;
        let mut compile = Command::new("cc");
        compile.args(["-shared", "-fPIC", "-O1", "-o"]).arg(directory.path().join("shim.so")).arg(&source);
        let compiled = compile.status().map_err(BenchError::io("run `cc`; apt-get install gcc brings it"))?;
        if !compiled.success() {
            return Err(BenchError::io("compile the calendar with `cc`")(io::Error::other(compiled.to_string())));
        }
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        let offset = options.open(directory.path().join("offset")).map_err(BenchError::io("write the offset"))?;
        let mut calendar = Self { directory, offset };
        calendar.write(0)?;
        Ok(calendar)
    }

    /// Options for a server that goes by this calendar.
    #[must_use]
    pub fn of(&self, options: RedisOptions) -> RedisOptions {
        options
            .environment("LD_PRELOAD", self.path("shim.so").to_string_lossy())
            .environment("REDLOCK_CALENDAR", self.path("offset").to_string_lossy())
    }

    /// Sets the calendar forward against the real time.
    ///
    /// # Errors
    /// [`BenchError::Io`] if the offset cannot be written.
    pub fn set_forward(&mut self, by: Duration) -> Result<(), BenchError> {
        self.write(micros(by))
    }

    /// Sets the calendar back against the real time.
    ///
    /// # Errors
    /// [`BenchError::Io`] if the offset cannot be written.
    pub fn set_back(&mut self, by: Duration) -> Result<(), BenchError> {
        self.write(-micros(by))
    }

    fn write(&mut self, offset: i64) -> Result<(), BenchError> {
        // In place: a file that was shorter for a moment would end the server that has mapped it.
        let write = |file: &mut File| {
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&offset.to_ne_bytes())
        };
        write(&mut self.offset).map_err(BenchError::io("write the offset"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
