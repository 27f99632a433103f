//! A Postgres of one's own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::caretaker::{Caretaker, run_as};
use super::on_free_port;
use super::template::folder_from_template;
use crate::BenchError;
use crate::process::find_program;

/// Names a running server to use in place of an own one.
const URL_VARIABLE: &str = "FENCE_TEST_POSTGRES_URL";

/// The user that the package brings; Postgres refuses to run as root.
const USER: &str = "postgres";

/// A running Postgres. Dropping it stops the server and removes its folder.
#[derive(Debug)]
pub struct Postgres {
    url: String,
    caretaker: Option<Caretaker>,
}

impl Postgres {
    /// Starts a server of one's own and waits until it takes connections.
    ///
    /// # Errors
    /// [`BenchError::NotInstalled`] names the command that brings the missing program; [`BenchError::DidNotStart`] has
    /// the end of the log.
    pub fn start() -> Result<Self, BenchError> {
        let binaries = binaries()?;
        on_free_port("postgres", "could not create any TCP/IP sockets", |port| Self::start_on(port, &binaries))
    }

    /// The server that all tests of this process share: the one that `FENCE_TEST_POSTGRES_URL` names, or one that the
    /// first caller starts.
    ///
    /// # Errors
    /// As [`Postgres::start`].
    pub fn shared() -> Result<&'static Self, &'static BenchError> {
        static SHARED: OnceLock<Result<Postgres, BenchError>> = OnceLock::new();
        SHARED
            .get_or_init(|| match std::env::var(URL_VARIABLE) {
                Ok(url) => Ok(Self { url, caretaker: None }),
                Err(_) => Self::start(),
            })
            .as_ref()
    }

    /// Where a superuser connects, to the database `postgres`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What the server wrote to its log so far; nothing for a server that somebody else started.
    #[must_use]
    pub fn log(&self) -> String {
        self.caretaker.as_ref().map(Caretaker::log).unwrap_or_default()
    }

    fn start_on(port: u16, binaries: &Path) -> Result<Self, BenchError> {
        let initdb = binaries.join("initdb");
        let folder = folder_from_template("postgres", |data| {
            let words = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"];
            let mut command = vec![initdb.as_path()];
            command.extend(words.map(Path::new));
            command.extend([Path::new("--pgdata"), data]);
            run_as(USER, &command)
        })?;

        let data = folder.path().join("data");
        let program = binaries.join("postgres");
        let port_text = port.to_string();
        let settings = [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "fsync=off",
            "max_connections=200",
            "shared_buffers=32MB",
        ];
        let mut command = vec![program.as_path(), Path::new("-D"), &data, Path::new("-p"), Path::new(&port_text)];
        for setting in settings {
            command.extend([Path::new("-c"), Path::new(setting)]);
        }
        // SIGINT is "fast shutdown": sessions are ended, shared memory is given back.
        let ready = "database system is ready to accept connections";
        let caretaker = Caretaker::start("postgres", USER, folder, "INT", ready, &command)?;
        Ok(Self { url: format!("postgres://postgres@127.0.0.1:{port}/postgres"), caretaker: Some(caretaker) })
    }
}

/// The folder with `initdb` and `postgres`; Debian keeps it off the search path.
fn binaries() -> Result<PathBuf, BenchError> {
    let from_config = find_program("pg_config")
        .and_then(|pg_config| Command::new(pg_config).arg("--bindir").output().ok())
        .map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    let debian = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .map(|version| version.path().join("bin"));
    let on_path = find_program("initdb").and_then(|initdb| Some(initdb.parent()?.to_owned()));
    from_config
        .into_iter()
        .chain(on_path)
        .chain(debian)
        .find(|folder| folder.join("initdb").is_file() && folder.join("postgres").is_file())
        .ok_or(BenchError::NotInstalled { program: "postgres".into(), package: "postgresql" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    #[test]
    fn a_server_starts_and_is_gone_when_dropped() {
        let server = Postgres::start().unwrap();
        let address = server.url().strip_prefix("postgres://postgres@").unwrap();
        let address = address.strip_suffix("/postgres").unwrap().to_owned();
        let folder = server.caretaker.as_ref().unwrap().folder();
        assert!(TcpStream::connect(&address).is_ok());
        assert!(folder.is_dir());
        drop(server);
        assert!(TcpStream::connect(&address).is_err());
        assert!(!folder.exists());
    }
}
