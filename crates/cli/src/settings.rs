//! Where the nodes are and under which terms to lock: options, environment and a file put together, and checked.
//!
//! What is typed comes before the environment, and that before the file. Passwords are accepted from the environment and the
//! file alone, and no error shows a URL.

use crate::exit::{Exit, Failure, with_causes};
use crate::options::{Common, duration};
use serde::Deserialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use url::Url;

/// The lock's life unless said otherwise.
const TTL: Duration = Duration::from_secs(10);

/// How a URL begins whose hosts are Sentinels.
pub(crate) const SENTINEL: &str = "redis-sentinel:";

/// What stands for several hosts while a URL is read.
const STAND_IN: &str = "sentinels.invalid";

/// How long to wait for a lock unless said otherwise.
const WAIT: Duration = Duration::from_secs(10);

/// What the commands work with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The nodes' URLs, secrets and all.
    pub nodes: Vec<SecretUrl>,
    /// What stands before every key.
    pub prefix: String,
    /// The lock's life.
    pub ttl: Duration,
    /// The longest wait.
    pub wait: Duration,
    /// Each node's deadline, if it is not the library's choice.
    pub node_timeout: Option<Duration>,
    /// Whether an even number of nodes is accepted.
    pub allow_even_nodes: bool,
    /// The longest ttl of all clients, if the crash-recovery guard is on.
    pub crash_guard: Option<Duration>,
    /// How long others are kept out after a holder was lost.
    pub lock_delay: Duration,
    /// Certificates for `rediss://`.
    pub tls: Tls,
    /// The database that the doctor looks at.
    pub database: Option<DatabaseSettings>,
    /// The file that was read.
    pub file: Option<PathBuf>,
}

/// A URL that may hold a password. Shows itself to nobody.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct SecretUrl(String);

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretUrl(…)")
    }
}

impl SecretUrl {
    /// Takes a URL as it is.
    #[must_use]
    pub fn new(url: String) -> Self {
        Self(url)
    }

    /// The whole URL, with its password. A secret.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether it holds a password.
    #[must_use]
    pub fn has_password(&self) -> bool {
        match self.0.strip_prefix(SENTINEL) {
            Some(rest) => rest.contains('@'),
            None => Url::parse(&self.0).is_ok_and(|url| has_password(&url)),
        }
    }
}

/// Certificates beyond those that the system trusts, as they stand in their files. `Debug` shows none of them.
#[derive(Clone, Default)]
pub struct Tls {
    /// The authorities to trust, and no others.
    pub authority: Option<Vec<u8>>,
    /// Our own certificate and its key.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
}

impl Tls {
    /// Whether the system's are all there is.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.authority.is_none() && self.client.is_none()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (authority, client) = (self.authority.is_some(), self.client.is_some());
        f.debug_struct("Tls").field("authority", &authority).field("client", &client).finish()
    }
}

/// Files in PEM, as they are named in the file.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct TlsFiles {
    ca: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl TlsFiles {
    fn read(self) -> Result<Tls, Failure> {
        let read = |path: PathBuf| {
            std::fs::read(&path)
                .map_err(|error| misconfigured(format!("{} cannot be read: {}", path.display(), with_causes(&error))))
        };
        let client = match (self.certificate, self.key) {
            (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
            (None, None) => None,
            _ => {
                return Err(misconfigured(
                    "a client certificate and its key are of use together only; name both in [tls]",
                ));
            }
        };
        Ok(Tls { authority: self.ca.map(read).transpose()?, client })
    }
}

/// A database with fenced tables.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatabaseSettings {
    /// Its URL, secrets and all.
    pub url: SecretUrl,
    /// The ledger's table.
    #[serde(default)]
    pub ledger: Option<String>,
    /// The tables that are fenced.
    #[serde(default)]
    pub tables: Vec<TableSettings>,
}

/// A fenced table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableSettings {
    /// `table` or `schema.table`.
    pub name: String,
    /// The fence column.
    #[serde(default = "fence_token")]
    pub column: String,
    /// Whether a guard is to be up.
    #[serde(default)]
    pub guard: bool,
    /// Whether the guard lets a token write a row again.
    #[serde(default)]
    pub may_rewrite: bool,
}

impl TableSettings {
    /// A table with the usual fence column and a strict guard.
    #[must_use]
    pub fn guarded(name: &str) -> Self {
        Self { name: name.to_owned(), column: fence_token(), guard: true, may_rewrite: false }
    }
}

fn fence_token() -> String {
    "fence_token".into()
}

/// The file, as it is written.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    nodes: Vec<String>,
    prefix: Option<String>,
    ttl: Option<String>,
    wait: Option<String>,
    node_timeout: Option<String>,
    #[serde(default)]
    allow_even_nodes: bool,
    crash_guard: Option<String>,
    lock_delay: Option<String>,
    #[serde(default)]
    tls: TlsFiles,
    database: Option<DatabaseSettings>,
}

impl Settings {
    /// Puts options, environment and file together.
    ///
    /// # Errors
    /// A [`Failure`] that names what to change and where, without showing a URL.
    pub fn gather(common: &Common) -> Result<Self, Failure> {
        Self::gather_from(common, |name| std::env::var(name).ok().filter(|value| !value.trim().is_empty()))
    }

    fn gather_from(common: &Common, environment: impl Fn(&str) -> Option<String>) -> Result<Self, Failure> {
        let file = common.config.clone().or_else(|| environment("REDLOCK_CONFIG").map(PathBuf::from));
        let written = match &file {
            Some(file) => read(file)?,
            None => Written::default(),
        };
        let (urls, whence) = match (&common.nodes, environment("REDLOCK_NODES")) {
            (Some(typed), _) => (split(typed), Whence::Argument),
            (None, Some(set)) => (split(&set), Whence::Environment),
            (None, None) => (written.nodes, Whence::File),
        };
        if urls.is_empty() {
            return Err(misconfigured(
                "no node is named: give --nodes, REDLOCK_NODES, or a file with --config or REDLOCK_CONFIG",
            ));
        }
        let (user, password) = (environment("REDLOCK_USERNAME"), environment("REDLOCK_PASSWORD"));
        let nodes = urls
            .iter()
            .enumerate()
            .map(|(position, url)| node_url(url, position, whence, user.as_deref(), password.as_deref()))
            .collect::<Result<_, _>>()?;
        let time = |name: &str, written: Option<&str>| match written {
            Some(text) => duration(text).map(Some).map_err(|error| misconfigured(format!("{name}: {error}"))),
            None => Ok(None),
        };
        let (ttl, crash_guard) = (environment("REDLOCK_TTL"), environment("REDLOCK_CRASH_GUARD"));
        Ok(Self {
            nodes,
            prefix: common
                .prefix
                .clone()
                .or_else(|| environment("REDLOCK_PREFIX"))
                .or(written.prefix)
                .unwrap_or_else(|| redlock_core::KeyPrefix::default().as_str().to_owned()),
            ttl: match time("REDLOCK_TTL", ttl.as_deref())? {
                Some(ttl) => ttl,
                None => time("ttl", written.ttl.as_deref())?.unwrap_or(TTL),
            },
            wait: time("wait", written.wait.as_deref())?.unwrap_or(WAIT),
            node_timeout: match common.node_timeout {
                Some(typed) => Some(typed),
                None => time("node_timeout", written.node_timeout.as_deref())?,
            },
            crash_guard: match (common.crash_guard, time("REDLOCK_CRASH_GUARD", crash_guard.as_deref())?) {
                (Some(longest), _) | (None, Some(longest)) => Some(longest),
                (None, None) => time("crash_guard", written.crash_guard.as_deref())?,
            },
            allow_even_nodes: common.allow_even_nodes || written.allow_even_nodes,
            lock_delay: time("lock_delay", written.lock_delay.as_deref())?.unwrap_or(Duration::ZERO),
            tls: written.tls.read()?,
            database: written.database,
            file,
        })
    }
}

/// Where the nodes were named.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whence {
    Argument,
    Environment,
    File,
}

/// Takes a list apart. The hosts of Sentinels are separated by commas as well, up to the name of their set.
fn split(list: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for part in list.split([',', ' ', '\n', '\t']).filter(|part| !part.is_empty()) {
        match parts.last_mut() {
            Some(open) if open.starts_with(SENTINEL) && !open.contains('?') => {
                open.push(',');
                open.push_str(part);
            }
            _ => parts.push(part.to_owned()),
        }
    }
    parts
}

fn node_url(
    text: &str,
    position: usize,
    whence: Whence,
    user: Option<&str>,
    password: Option<&str>,
) -> Result<SecretUrl, Failure> {
    let which = format!(
        "node {} of {}",
        position + 1,
        match whence {
            Whence::Argument => "--nodes",
            Whence::Environment => "REDLOCK_NODES",
            Whence::File => "the configuration file",
        }
    );
    let whole = if text.contains("://") { text.to_owned() } else { format!("redis://{text}") };
    let malformed = || {
        misconfigured(format!(
            "{which} is no Redis URL; write redis://HOST[:PORT][/DATABASE], rediss:// for TLS, unix:///PATH, or \
             redis-sentinel://HOST?set=NAME"
        ))
    };
    // Its several hosts are none to the parser, so it is read as if it had the first alone.
    let hosts = whole.strip_prefix(SENTINEL).and_then(|rest| rest.strip_prefix("//")).map(|rest| {
        let hosts = rest.split(['/', '?']).next().unwrap_or_default();
        hosts.rsplit_once('@').map_or(hosts, |(_, hosts)| hosts).to_owned()
    });
    let readable = match &hosts {
        Some(hosts) => whole.replacen(hosts.as_str(), STAND_IN, 1),
        None => whole,
    };
    let mut url = Url::parse(&readable).map_err(|_| malformed())?;
    if whence == Whence::Argument && has_password(&url) {
        return Err(Failure::new(
            Exit::Usage,
            format!(
                "{which} has a password, which everybody on this machine can read: put the URL into REDLOCK_NODES or the \
                 configuration file, or the password alone into REDLOCK_PASSWORD"
            ),
        ));
    }
    if let Some(password) = password.filter(|_| !has_password(&url)) {
        if url.scheme().starts_with("unix") || url.scheme() == "redis+unix" {
            url.query_pairs_mut().append_pair("pass", password);
            if let Some(user) = user {
                url.query_pairs_mut().append_pair("user", user);
            }
        } else {
            if let Some(user) = user.filter(|_| url.username().is_empty()) {
                url.set_username(user).map_err(|()| malformed())?;
            }
            url.set_password(Some(password)).map_err(|()| malformed())?;
        }
    }
    let url = String::from(url);
    Ok(SecretUrl(match &hosts {
        Some(hosts) => url.replacen(STAND_IN, hosts, 1),
        None => url,
    }))
}

fn has_password(url: &Url) -> bool {
    holds_password(url, |name| name == "pass")
}

/// Whether there is a password in a URL, before its host or as an argument of such a name.
pub(crate) fn holds_password(url: &Url, is_named_so: impl Fn(&str) -> bool) -> bool {
    url.password().is_some() || url.query_pairs().any(|(name, _)| is_named_so(&name))
}

fn read(file: &Path) -> Result<Written, Failure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| misconfigured(format!("{} cannot be read: {}", file.display(), with_causes(&error))))?;
    // The parser's own message shows the line, which may be the one with a password.
    toml::from_str(&text).map_err(|error| {
        let line = error.span().map(|span| text[..span.start].matches('\n').count() + 1);
        let at = line.map(|line| format!(", line {line}")).unwrap_or_default();
        misconfigured(format!("{}{at}: {}", file.display(), without_values(error.message())))
    })
}

/// What the parser says, without what it quotes of the file, as that may be a URL in the wrong place: only a name that a setting
/// could have is left.
fn without_values(message: &str) -> String {
    let hidden = match (message.find('"'), message.rfind('"')) {
        (Some(first), Some(last)) => format!("{}…{}", &message[..=first], &message[last..]),
        _ => message.to_owned(),
    };
    let is_name =
        |name: &str| name.chars().all(|character| character.is_ascii_alphanumeric() || "_-".contains(character));
    let unknown = "unknown field `";
    match hidden.strip_prefix(unknown).map(|rest| rest.rsplit_once("`, expected")) {
        Some(Some((name, expected))) if !is_name(name) => format!("{unknown}…`, expected{expected}"),
        Some(None) => format!("{unknown}…`"),
        _ => hidden.lines().next().unwrap_or_default().to_owned(),
    }
}

fn misconfigured(message: impl Into<String>) -> Failure {
    Failure::new(Exit::Misconfigured, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gather(nodes: Option<&str>, environment: &[(&str, &str)]) -> Result<Settings, Failure> {
        let common = Common { nodes: nodes.map(str::to_owned), ..Common::default() };
        let value = |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Settings::gather_from(&common, value)
    }

    fn urls(settings: &Settings) -> Vec<&str> {
        settings.nodes.iter().map(SecretUrl::expose).collect()
    }

    #[test]
    fn what_is_typed_comes_before_the_environment() {
        let settings = gather(Some("a:1,b"), &[("REDLOCK_NODES", "redis://c"), ("REDLOCK_TTL", "3s")]).unwrap();
        assert_eq!(urls(&settings), ["redis://a:1", "redis://b"]);
        assert_eq!(settings.ttl, Duration::from_secs(3));
        let settings = gather(None, &[("REDLOCK_NODES", "redis://c, redis://d\nunix:///s")]).unwrap();
        assert_eq!(urls(&settings), ["redis://c", "redis://d", "unix:///s"]);
    }

    #[test]
    fn a_password_is_no_argument_and_is_shown_nowhere() {
        for typed in ["redis://:hunter2@a", "unix:///s?pass=hunter2"] {
            let failure = gather(Some(typed), &[]).err().unwrap();
            assert_eq!(failure.exit, Exit::Usage);
            assert!(!failure.message.contains("hunter2"), "{}", failure.message);
        }
        for strange in ["redis://:hunter2@a b:x", "http//:hunter2"] {
            let shown = gather(None, &[("REDLOCK_NODES", strange)]).map_err(|failure| failure.message).err();
            assert!(!shown.unwrap_or_default().contains("hunter2"));
        }
    }

    #[test]
    fn a_password_of_its_own_is_for_nodes_without_one() {
        let secret = [("REDLOCK_PASSWORD", "p@ss"), ("REDLOCK_USERNAME", "locker")];
        assert_eq!(urls(&gather(Some("a"), &secret).unwrap()), ["redis://locker:p%40ss@a"]);
        let own = [("REDLOCK_NODES", "redis://x:own@a"), secret[0], secret[1]];
        assert_eq!(urls(&gather(None, &own).unwrap()), ["redis://x:own@a"]);
    }

    #[test]
    fn sentinels_stay_together() {
        let listed = "redis-sentinel://a:1,b:2,c/3?set=jobs,d,redis-sentinel://e?set=x";
        let expected = ["redis-sentinel://a:1,b:2,c/3?set=jobs", "redis://d", "redis-sentinel://e?set=x"];
        assert_eq!(urls(&gather(Some(listed), &[]).unwrap()), expected);
        let secret = gather(Some("redis-sentinel://a,b?set=jobs"), &[("REDLOCK_PASSWORD", "p@ss")]).unwrap();
        assert_eq!(urls(&secret), ["redis-sentinel://:p%40ss@a,b?set=jobs"]);
        assert!(secret.nodes[0].has_password());
        let typed = gather(Some("redis-sentinel://:hunter2@a,b?set=jobs"), &[]).err().unwrap();
        assert_eq!(typed.exit, Exit::Usage);
    }

    #[test]
    fn certificates_are_read_and_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        let (ca, file) = (folder.path().join("ca.pem"), folder.path().join("redlock.toml"));
        std::fs::write(&ca, "hunter2").unwrap();
        let write = |more: &str| std::fs::write(&file, format!("nodes = [\"a\"]\n[tls]\nca = {ca:?}\n{more}")).unwrap();
        let common = Common { config: Some(file.clone()), ..Common::default() };
        write("");
        let settings = Settings::gather_from(&common, |_| None).unwrap();
        assert_eq!(settings.tls.authority.as_deref(), Some(&b"hunter2"[..]));
        assert!(!format!("{settings:?}").contains("hunter2") && !settings.tls.is_plain());
        write("certificate = \"alone.pem\"");
        assert_eq!(Settings::gather_from(&common, |_| None).err().unwrap().exit, Exit::Misconfigured);
    }

    #[test]
    fn a_file_that_is_none_is_told_by_its_line_and_not_its_text() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "prefix = \"x:\"\nnodes = [\"redis://:hunter2@a\", 7]\n").unwrap();
        let common = Common { config: Some(file.path().to_owned()), ..Common::default() };
        let failure = Settings::gather_from(&common, |_| None).err().unwrap();
        assert_eq!(failure.exit, Exit::Misconfigured);
        assert!(failure.message.contains("line 2"), "{}", failure.message);
        assert!(!failure.message.contains("hunter2"), "{}", failure.message);
    }

    /// A URL where a list, a table or a name is expected is what people write by mistake.
    #[test]
    fn what_stands_in_the_wrong_place_is_not_shown() {
        for (text, line) in [
            ("prefix = 'x:'\nnodes = \"redis://:hunter2@a\"", 2),
            ("nodes = ['a']\ndatabase = 'postgres://shop:hunter2@localhost/shop'", 2),
            ("nodes = ['a']\n\n'redis://:hunter2@a' = 3", 3),
            ("nodes = ['a']\n\"redis://:x`, expected\\nhunter2\" = 3", 2),
            ("nodes = ['a']\nttl = 'hunter2", 2),
            ("nodes = ['a']\nallow_even_nodes = \"x\\\"hunter2\\\"\"", 2),
        ] {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), text).unwrap();
            let common = Common { config: Some(file.path().to_owned()), ..Common::default() };
            let failure = Settings::gather_from(&common, |_| None).err().unwrap();
            assert_eq!(failure.exit, Exit::Misconfigured);
            assert!(!failure.message.contains("hunter2"), "{}", failure.message);
            assert!(failure.message.contains(&format!("line {line}:")), "{}", failure.message);
        }
        let expected = "unknown field `node`, expected `nodes`";
        assert_eq!(without_values(expected), expected);
    }

    #[test]
    fn a_file_says_all_that_can_be_set() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "nodes = [\"redis://:hunter2@a\"]\nprefix = \"x:\"\nttl = \"4s\"\nwait = \"1s\"\n\
                    node_timeout = \"20ms\"\nallow_even_nodes = true\n\
                    crash_guard = \"30s\"\nlock_delay = \"5s\"\n[database]\nurl = \"sqlite::memory:\"\n\
                    [[database.tables]]\nname = \"orders\"\nguard = true\n";
        std::fs::write(file.path(), text).unwrap();
        let common = Common { config: Some(file.path().to_owned()), ..Common::default() };
        let settings = Settings::gather_from(&common, |_| None).unwrap();
        assert_eq!(settings.prefix, "x:");
        assert_eq!((settings.ttl, settings.wait), (Duration::from_secs(4), Duration::from_secs(1)));
        assert_eq!(settings.node_timeout, Some(Duration::from_millis(20)));
        assert_eq!(settings.crash_guard, Some(Duration::from_secs(30)));
        assert_eq!(settings.lock_delay, Duration::from_secs(5));
        assert!(settings.allow_even_nodes && settings.nodes[0].has_password());
        assert_eq!(settings.database.unwrap().tables[0].column, "fence_token");
    }
}
