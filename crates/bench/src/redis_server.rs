//! Real Redis primaries that a test starts, freezes, kills and brings back.
//!
//! Each server has its own temporary directory and a port of its own that it keeps over restarts. It also listens on a
//! socket file in that directory; readiness and [`RedisServer::probe`] go through it, so that they reach this very server
//! and no other one that happened to take the port, and are not affected by what TLS or a proxy do on the TCP side.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::try_join_all;
use tempfile::TempDir;
use tokio::time::Instant;

use crate::ports::free_port;
use crate::process::{Process, find_program};
use crate::{BenchError, Probe, Reply};

/// How long a server may take until it answers; loading a large append-only file is the slowest case.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// The pause between two looks whether it answers.
const START_PERIOD: Duration = Duration::from_millis(5);

/// How often a start is tried again because somebody else took the port in between.
const PORT_TRIES: usize = 10;

/// The file with the private key that belongs to the certificate.
const KEY: &str = "key.pem";

/// How much of a log an error message carries, in lines.
const LOG_LINES_MAX: usize = 20;

/// One running server. Dropping it kills it and removes its directory.
#[derive(Debug)]
pub struct RedisServer {
    options: RedisOptions,
    program: PathBuf,
    directory: TempDir,
    ports: Ports,
    process: Mutex<Process>,
}

#[derive(Debug, Clone, Copy)]
struct Ports {
    plain: u16,
    tls: Option<u16>,
}

/// How a server is set up. The default keeps nothing on disk, as the tests' primaries do.
#[derive(Debug, Clone, Default)]
pub struct RedisOptions {
    program: Option<PathBuf>,
    directives: Vec<Vec<String>>,
    password: Option<String>,
    tls: bool,
    environment: Vec<(String, String)>,
}

impl RedisOptions {
    /// A primary without persistence, password or limits.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a configuration directive with its values, as on a line of `redis.conf`.
    ///
    /// ```
    /// # use redlock_bench::RedisOptions;
    /// RedisOptions::new()
    ///     .set("appendonly", ["yes"])
    ///     .set("maxmemory", ["3mb"])
    ///     .set("user", ["worker", "on", ">secret", "~*", "+@all"]);
    /// ```
    #[must_use]
    pub fn set<V: Into<String>>(mut self, directive: &str, values: impl IntoIterator<Item = V>) -> Self {
        let words = std::iter::once(format!("--{directive}")).chain(values.into_iter().map(Into::into));
        self.directives.push(words.collect());
        self
    }

    /// Asks every client for a password. The server's URL and probe carry it.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Listens with TLS on a second port, with a certificate made for the occasion. Needs the `openssl` program.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Makes the server a replica of another one.
    #[must_use]
    pub fn replica_of(self, primary: &RedisServer) -> Self {
        self.set("replicaof", ["127.0.0.1".to_owned(), primary.port().to_string()])
    }

    /// Runs this program instead of the one found on the search path.
    #[must_use]
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// Gives the server's process an environment variable, such as a library to preload.
    #[must_use]
    pub fn environment(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }
}

impl RedisServer {
    /// Starts a server and waits until it answers.
    ///
    /// # Errors
    /// [`BenchError::NotInstalled`] if this machine has neither `redis-server` nor `valkey-server` (`REDIS_SERVER` in the
    /// environment names another program), [`BenchError::DidNotStart`] with its log if it does not come up.
    ///
    /// # Cancel safety
    /// Dropping the future kills the server that was starting.
    pub async fn start(options: RedisOptions) -> Result<Self, BenchError> {
        let program = installed_program(&options)?;
        let directory =
            tempfile::Builder::new().prefix("redlock-redis-").tempdir().map_err(BenchError::io("make a directory"))?;
        if options.tls {
            make_certificate(directory.path())?;
        }
        let mut tries = 0;
        loop {
            tries += 1;
            let ports = Ports { plain: free_port(), tls: options.tls.then(free_port) };
            match launch(&program, &options, directory.path(), ports).await {
                Ok(process) => {
                    return Ok(Self { options, program, directory, ports, process: Mutex::new(process) });
                }
                Err(error) if port_was_taken(&error) && tries < PORT_TRIES => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The port, the same over all restarts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.ports.plain
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    /// The URL for clients, with the password if there is one.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_through(self.address())
    }

    /// The URL for clients that reach this server by another address, such as a proxy's.
    #[must_use]
    pub fn url_through(&self, address: SocketAddr) -> String {
        let credentials = self.options.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        format!("redis://{credentials}{address}")
    }

    /// The URL for clients over TLS, which have to trust [`RedisServer::certificate`].
    ///
    /// # Panics
    /// If the server was not set up with [`RedisOptions::tls`].
    #[must_use]
    pub fn tls_url(&self) -> String {
        let port = self.ports.tls.expect("the server was set up with TLS");
        self.url_through((Ipv4Addr::LOCALHOST, port).into()).replacen("redis", "rediss", 1)
    }

    /// The file with the server's certificate, which has signed itself; for `localhost` and 127.0.0.1.
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        certificate_in(self.directory.path())
    }

    /// The file with the key of that certificate.
    #[must_use]
    pub fn key(&self) -> PathBuf {
        self.directory.path().join(KEY)
    }

    /// The socket file on which the server listens as well.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        socket_in(self.directory.path())
    }

    /// The process id of the present incarnation.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process().pid()
    }

    /// Whether there is a process, frozen or not.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.process().exited().is_none()
    }

    /// A direct line to this server, not connected yet.
    #[must_use]
    pub fn probe(&self) -> Probe {
        probe_in(self.directory.path(), &self.options)
    }

    /// Asks one question over a fresh direct line.
    ///
    /// # Errors
    /// As [`Probe::command`].
    ///
    /// # Cancel safety
    /// The server may have carried out the command.
    pub async fn command<W: AsRef<[u8]> + Sync>(&self, words: &[W]) -> Result<Reply, BenchError> {
        self.probe().command(words).await
    }

    /// Suspends the server (SIGSTOP): it keeps its connections and answers nothing.
    ///
    /// # Errors
    /// [`BenchError::Io`] if it is not running.
    pub fn freeze(&self) -> Result<(), BenchError> {
        self.process().freeze()
    }

    /// Lets it go on (SIGCONT). It carries out what was sent to it meanwhile, as servers do.
    ///
    /// # Errors
    /// [`BenchError::Io`] if it is not running.
    pub fn thaw(&self) -> Result<(), BenchError> {
        self.process().thaw()
    }

    /// Kills the server (SIGKILL), frozen or not, and waits until it is gone. Idempotent.
    pub fn kill(&self) {
        self.process().kill();
    }

    /// Kills the server if it runs and starts it again on the same port, having forgotten everything.
    ///
    /// # Errors
    /// As [`RedisServer::start`].
    ///
    /// # Cancel safety
    /// The server is down afterwards; restarting again is fine.
    pub async fn restart(&self) -> Result<(), BenchError> {
        self.kill();
        let data = data_in(self.directory.path());
        if data.exists() {
            fs::remove_dir_all(&data).map_err(BenchError::io("remove the server's data"))?;
        }
        self.start_again().await
    }

    /// Kills the server if it runs and starts it again on the same port with what it has on disk, which is nothing unless
    /// its options say so (`appendonly`, `save`).
    ///
    /// # Errors
    /// As [`RedisServer::start`].
    ///
    /// # Cancel safety
    /// The server is down afterwards; restarting again is fine.
    pub async fn restart_with_data(&self) -> Result<(), BenchError> {
        self.kill();
        self.start_again().await
    }

    /// Where the server keeps its files. A test that damages them kills the server first.
    #[must_use]
    pub fn data_directory(&self) -> PathBuf {
        data_in(self.directory.path())
    }

    /// What the server has written to its log, over all restarts.
    #[must_use]
    pub fn log(&self) -> String {
        log_in(self.directory.path())
    }

    async fn start_again(&self) -> Result<(), BenchError> {
        let end = Instant::now() + START_DEADLINE;
        loop {
            match launch(&self.program, &self.options, self.directory.path(), self.ports).await {
                Ok(process) => {
                    *self.process() = process;
                    return Ok(());
                }
                // Somebody looks for a free port right now and will let go of ours.
                Err(error) if port_was_taken(&error) && Instant::now() < end => tokio::time::sleep(START_PERIOD).await,
                Err(error) => return Err(error),
            }
        }
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Several independent servers, started side by side.
#[derive(Debug)]
pub struct Servers(Vec<RedisServer>);

impl Servers {
    /// Starts `n` primaries.
    ///
    /// # Errors
    /// As [`RedisServer::start`].
    ///
    /// # Cancel safety
    /// As [`RedisServer::start`].
    pub async fn start(n: usize) -> Result<Self, BenchError> {
        Self::start_with(n, |_| RedisOptions::new()).await
    }

    /// Starts `n` servers, each with the options for its index.
    ///
    /// # Errors
    /// As [`RedisServer::start`].
    ///
    /// # Cancel safety
    /// As [`RedisServer::start`].
    pub async fn start_with(n: usize, options: impl Fn(usize) -> RedisOptions) -> Result<Self, BenchError> {
        try_join_all((0..n).map(|index| RedisServer::start(options(index)))).await.map(Self)
    }

    /// All URLs, in order.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.iter().map(RedisServer::url).collect()
    }

    /// The keys that match `pattern` on each server, in order. A killed server has none.
    ///
    /// # Errors
    /// As [`Probe::command`]: of a frozen server nobody knows what it holds.
    ///
    /// # Cancel safety
    /// Nothing has changed.
    pub async fn keys(&self, pattern: &str) -> Result<Vec<Vec<String>>, BenchError> {
        let asked = self.iter().map(async |server| match server.is_running() {
            true => server.probe().keys(pattern).await,
            false => Ok(Vec::new()),
        });
        try_join_all(asked).await
    }
}

impl Deref for Servers {
    type Target = [RedisServer];

    fn deref(&self) -> &[RedisServer] {
        &self.0
    }
}

/// The program that the environment, the options or the search path name.
fn installed_program(options: &RedisOptions) -> Result<PathBuf, BenchError> {
    let named = options.program.clone().or_else(|| std::env::var_os("REDIS_SERVER").map(PathBuf::from));
    let found = match &named {
        Some(program) => find_program(program),
        None => find_program("redis-server").or_else(|| find_program("valkey-server")),
    };
    found.ok_or_else(|| BenchError::NotInstalled {
        program: named.map_or("redis-server".into(), |program| program.display().to_string()),
        package: "redis-server",
    })
}

/// Starts the program once, on this port, and waits until it answers.
async fn launch(program: &Path, options: &RedisOptions, directory: &Path, ports: Ports) -> Result<Process, BenchError> {
    let data = data_in(directory);
    fs::create_dir_all(&data).map_err(BenchError::io("make the server's data directory"))?;
    let logged_before = log_in(directory).len();
    let log = File::options()
        .create(true)
        .append(true)
        .open(directory.join("log"))
        .and_then(|log| Ok((log.try_clone()?, log)))
        .map_err(BenchError::io("open the server's log"))?;

    let process = Process::spawn(program, |command| {
        command.arg("--port").arg(ports.plain.to_string()).arg("--bind").args(["127.0.0.1", "-::1"]);
        command.arg("--unixsocket").arg(socket_in(directory)).arg("--dir").arg(data);
        command.args(["--save", "", "--appendonly", "no"]);
        // A replica is served at once instead of after the five seconds in which others might join it.
        command.args(["--repl-diskless-sync-delay", "0"]);
        if let Some(port) = ports.tls {
            command.arg("--tls-port").arg(port.to_string()).args(["--tls-auth-clients", "no"]);
            command.arg("--tls-cert-file").arg(certificate_in(directory));
            command
                .arg("--tls-key-file")
                .arg(directory.join(KEY))
                .arg("--tls-ca-cert-file")
                .arg(certificate_in(directory));
        }
        if let Some(password) = &options.password {
            command.args(["--requirepass", password]);
        }
        command.args(options.directives.iter().flatten());
        command.envs(options.environment.iter().map(|(name, value)| (name, value)));
        command.current_dir(directory).stdin(Stdio::null()).stdout(log.0).stderr(log.1);
    })?;
    answers(&process, &mut probe_in(directory, options)).await.map_err(|why| BenchError::DidNotStart {
        program: program.display().to_string(),
        why,
        log: last_lines(&log_in(directory)[logged_before..]),
    })?;
    Ok(process)
}

/// Waits until the server answers, or says why it will not.
async fn answers(process: &Process, probe: &mut Probe) -> Result<(), String> {
    let end = Instant::now() + START_DEADLINE;
    loop {
        let why = match probe.command(&["PING"]).await {
            Ok(Reply::Error(refusal)) if refusal.starts_with("LOADING") => refusal,
            // A refusal for want of rights is an answer too.
            Ok(_) => return Ok(()),
            Err(error) => error.to_string(),
        };
        if let Some(status) = process.exited() {
            return Err(format!("it ended with {status}"));
        }
        if end <= Instant::now() {
            return Err(format!("it did not answer within {START_DEADLINE:?}: {why}"));
        }
        tokio::time::sleep(START_PERIOD).await;
    }
}

/// Whether another program had the port. The words are those of the system, carried through by the server's log.
fn port_was_taken(error: &BenchError) -> bool {
    matches!(error, BenchError::DidNotStart { log, .. } if log.contains("Address already in use"))
}

/// Makes a key and a certificate that has signed itself and is its own trust anchor.
fn make_certificate(directory: &Path) -> Result<(), BenchError> {
    let openssl =
        find_program("openssl").ok_or(BenchError::NotInstalled { program: "openssl".into(), package: "openssl" })?;
    let made = Command::new(openssl)
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        // Rust's TLS refuses a server whose certificate is an authority's.
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(directory.join(KEY))
        .arg("-out")
        .arg(certificate_in(directory))
        .output()
        .map_err(BenchError::io("run openssl"))?;
    match made.status.success() {
        true => Ok(()),
        false => Err(BenchError::DidNotStart {
            program: "openssl".into(),
            why: made.status.to_string(),
            log: String::from_utf8_lossy(&made.stderr).into_owned(),
        }),
    }
}

fn probe_in(directory: &Path, options: &RedisOptions) -> Probe {
    let probe = Probe::new(socket_in(directory));
    match &options.password {
        Some(password) => probe.user("default", password),
        None => probe,
    }
}

fn certificate_in(directory: &Path) -> PathBuf {
    directory.join("certificate.pem")
}

fn socket_in(directory: &Path) -> PathBuf {
    directory.join("socket")
}

fn data_in(directory: &Path) -> PathBuf {
    directory.join("data")
}

fn log_in(directory: &Path) -> String {
    fs::read_to_string(directory.join("log")).unwrap_or_default()
}

fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES_MAX)..].join("\n")
}
