//! A MariaDB of one's own.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::caretaker::{Caretaker, run_as};
use super::on_free_port;
use super::template::folder_from_template;
use crate::BenchError;
use crate::process::find_program;

/// Names a running server to use in place of an own one.
const URL_VARIABLE: &str = "FENCE_TEST_MARIADB_URL";

/// The user that the package brings; MariaDB refuses to run as root unless told twice.
const USER: &str = "mysql";

/// A running MariaDB. Dropping it stops the server and removes its folder.
#[derive(Debug)]
pub struct MariaDb {
    url: String,
    caretaker: Option<Caretaker>,
}

impl MariaDb {
    /// Starts a server of one's own and waits until it takes connections.
    ///
    /// # Errors
    /// [`BenchError::NotInstalled`] names the command that brings the missing program; [`BenchError::DidNotStart`] has
    /// the end of the log.
    pub fn start() -> Result<Self, BenchError> {
        on_free_port("mariadbd", "Address already in use", Self::start_on)
    }

    /// The server that all tests of this process share: the one that `FENCE_TEST_MARIADB_URL` names, or one that the
    /// first caller starts.
    ///
    /// # Errors
    /// As [`MariaDb::start`].
    pub fn shared() -> Result<&'static Self, &'static BenchError> {
        static SHARED: OnceLock<Result<MariaDb, BenchError>> = OnceLock::new();
        SHARED
            .get_or_init(|| match std::env::var(URL_VARIABLE) {
                Ok(url) => Ok(Self { url, caretaker: None }),
                Err(_) => Self::start(),
            })
            .as_ref()
    }

    /// Where a superuser connects, to the database `mysql`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What the server wrote to its log so far; nothing for a server that somebody else started.
    #[must_use]
    pub fn log(&self) -> String {
        self.caretaker.as_ref().map(Caretaker::log).unwrap_or_default()
    }

    fn start_on(port: u16) -> Result<Self, BenchError> {
        let install = program("mariadb-install-db")?;
        let server = program("mariadbd")?;
        let folder = folder_from_template("mariadb", |data| {
            let data = format!("--datadir={}", data.display());
            let words = [
                "--no-defaults",
                data.as_str(),
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--innodb-log-file-size=8M",
            ];
            let mut command = vec![install.as_path()];
            command.extend(words.map(Path::new));
            run_as(USER, &command)
        })?;

        let data = format!("--datadir={}", folder.path().join("data").display());
        let socket = format!("--socket={}", folder.path().join("data/socket").display());
        // A server that starts removes what it takes for leftovers of its own there: in a common folder, the temporary
        // tables that another one is working on.
        let temporary = format!("--tmpdir={}", folder.path().join("data").display());
        let port_word = format!("--port={port}");
        let words = [
            "--no-defaults",
            data.as_str(),
            socket.as_str(),
            temporary.as_str(),
            port_word.as_str(),
            "--bind-address=127.0.0.1",
            "--max-connections=300",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-buffer-pool-size=64M",
            "--innodb-log-file-size=8M",
        ];
        let mut command = vec![server.as_path()];
        command.extend(words.map(Path::new));
        // The socket file is announced with the port, after everything else.
        let ready = format!("port: {port}");
        let caretaker = Caretaker::start("mariadbd", USER, folder, "TERM", &ready, &command)?;
        Ok(Self { url: format!("mysql://root@127.0.0.1:{port}/mysql"), caretaker: Some(caretaker) })
    }
}

fn program(name: &str) -> Result<PathBuf, BenchError> {
    find_program(name).ok_or_else(|| BenchError::NotInstalled { program: name.to_owned(), package: "mariadb-server" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    #[test]
    fn a_server_starts_and_is_gone_when_dropped() {
        let server = MariaDb::start().unwrap();
        let address = server.url().strip_prefix("mysql://root@").unwrap();
        let address = address.strip_suffix("/mysql").unwrap().to_owned();
        let folder = server.caretaker.as_ref().unwrap().folder();
        assert!(TcpStream::connect(&address).is_ok());
        assert!(folder.is_dir());
        drop(server);
        assert!(TcpStream::connect(&address).is_err());
        assert!(!folder.exists());
    }
}
