//! Where a node is: at an address, or wherever its Sentinels say that the primary is at present.
//!
//! What a URL says is checked once, before anything is connected to. Sentinels are asked anew for each connection, one after the
//! other; a set that they watch is one node with one vote, whoever is its primary.

use super::UrlError;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, RedisResult};
#[cfg(feature = "tls")]
use std::fmt;
use std::time::Duration;

/// Unacknowledged data, or an idle connection that does not answer probes, for so long means that it is dead.
pub(super) const TCP_PATIENCE: Duration = Duration::from_secs(5);

/// How a URL begins whose hosts are Sentinels.
const SENTINEL: &str = "redis-sentinel:";

/// Where a Sentinel listens if its URL does not say.
const SENTINEL_PORT: u16 = 26_379;

/// Certificates for `rediss://`, beyond what the system trusts. Contents in PEM, not paths. `Debug` shows none of them.
#[cfg(feature = "tls")]
#[derive(Clone, Default)]
pub struct Certificates {
    authority: Option<Vec<u8>>,
    client: Option<(Vec<u8>, Vec<u8>)>,
}

#[cfg(feature = "tls")]
impl Certificates {
    /// What the system trusts, and no certificate of our own.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the servers that these authorities vouch for, and no others.
    #[must_use]
    pub fn authority(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authority = Some(pem.into());
        self
    }

    /// Shows this certificate to a server that asks for one (`tls-auth-clients yes`, which is Redis' default with TLS).
    #[must_use]
    pub fn client(mut self, certificate_pem: impl Into<Vec<u8>>, key_pem: impl Into<Vec<u8>>) -> Self {
        self.client = Some((certificate_pem.into(), key_pem.into()));
        self
    }
}

#[cfg(feature = "tls")]
impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (authority, client) = (self.authority.is_some(), self.client.is_some());
        f.debug_struct("Certificates").field("authority", &authority).field("client", &client).finish()
    }
}

/// Where a node is.
pub(super) enum Target {
    /// There, always.
    Address(redis::Client),
    Sentinels(Sentinels),
}

/// Who knows where the primary of a set is.
pub(super) struct Sentinels {
    /// How the set is called.
    pub(super) set: String,
    pub(super) all: Vec<redis::Client>,
    /// How to connect to the primary, all but its address.
    primary: ConnectionInfo,
}

impl Sentinels {
    /// The primary, at an address that a Sentinel gave.
    pub(super) fn primary_at(&self, host: String, port: u16) -> RedisResult<redis::Client> {
        redis::Client::open(self.primary.clone().set_addr(ConnectionAddr::Tcp(host, port)))
    }
}

impl Target {
    pub(super) fn parse(url: &str) -> Result<Self, UrlError> {
        if url.starts_with(SENTINEL) {
            return Ok(Self::Sentinels(sentinels(url).ok_or(UrlError::Malformed)?));
        }
        let info = connection_info(url)?;
        redis::Client::open(info).map(Self::Address).map_err(|_| UrlError::Malformed)
    }

    #[cfg(feature = "tls")]
    pub(super) fn parse_with(url: &str, certificates: &Certificates) -> Result<Self, UrlError> {
        let info = connection_info(url)?;
        if !matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            return Err(UrlError::NotTls);
        }
        // A file in which there is no certificate at all would do for the redis crate: it trusts nobody then.
        let holds = |pem: &[u8], what: &str| String::from_utf8_lossy(pem).contains(what);
        let authority = certificates.authority.as_ref().is_none_or(|pem| holds(pem, "BEGIN CERTIFICATE"));
        let client = certificates.client.as_ref();
        if !authority || !client.is_none_or(|(certificate, _)| holds(certificate, "BEGIN CERTIFICATE")) {
            return Err(UrlError::Certificates);
        }
        let client_tls = certificates.client.clone();
        let client_tls = client_tls.map(|(client_cert, client_key)| redis::ClientTlsConfig { client_cert, client_key });
        let certificates = redis::TlsCertificates { client_tls, root_cert: certificates.authority.clone() };
        redis::Client::build_with_tls(info, certificates).map(Self::Address).map_err(|_| UrlError::Certificates)
    }

    /// How people call it: its address and, if it is not 0, its database, or the name of its set. Never user or password.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Address(client) => name_of(client.get_connection_info()),
            Self::Sentinels(Sentinels { set, primary, .. }) => match primary.redis_settings().db() {
                0 => format!("sentinel:{set}"),
                database => format!("sentinel:{set}/{database}"),
            },
        }
    }
}

fn connection_info(url: &str) -> Result<ConnectionInfo, UrlError> {
    if url.starts_with("rediss:") {
        prepare_tls()?;
    }
    let info: RedisResult<ConnectionInfo> = url.into_connection_info();
    Ok(with_options(info.map_err(|_| UrlError::Malformed)?))
}

fn with_options(info: ConnectionInfo) -> ConnectionInfo {
    let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive());
    #[cfg(target_os = "linux")]
    let tcp = tcp.set_user_timeout(TCP_PATIENCE);
    info.set_tcp_settings(tcp)
}

/// `redis-sentinel://[user:password@]host[:port][,host[:port]…][/database]?set=NAME`: user, password and database are those of
/// the primary; Sentinels themselves are asked without a password.
fn sentinels(url: &str) -> Option<Sentinels> {
    let rest = url.strip_prefix(SENTINEL)?.strip_prefix("//")?;
    let (rest, query) = rest.split_once('?')?;
    let set = query.strip_prefix("set=").filter(|set| !set.is_empty() && !set.contains(['&', '%']))?.to_owned();
    let (hosts, database) = match rest.rsplit_once('/') {
        Some((hosts, database)) => (hosts, format!("/{database}")),
        None => (rest, String::new()),
    };
    let (credentials, hosts) = match hosts.rsplit_once('@') {
        Some((credentials, hosts)) => (format!("{credentials}@"), hosts),
        None => (String::new(), hosts),
    };
    let open = |host: &str| {
        let info: ConnectionInfo = format!("redis://{host}").into_connection_info().ok()?;
        let info = match info.addr().clone() {
            ConnectionAddr::Tcp(name, _) if !has_port(host) => info.set_addr(ConnectionAddr::Tcp(name, SENTINEL_PORT)),
            _ => info,
        };
        redis::Client::open(with_options(info)).ok()
    };
    let all = hosts.split(',').map(open).collect::<Option<Vec<_>>>()?;
    // The address is filled in once a Sentinel has said it.
    let primary: ConnectionInfo = format!("redis://{credentials}primary{database}").into_connection_info().ok()?;
    Some(Sentinels { set, all, primary: with_options(primary) })
}

fn has_port(host: &str) -> bool {
    let after_address = host.rsplit_once(']').map_or(host, |(_, after)| after);
    after_address.contains(':')
}

pub(super) fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new().with_time(TCP_PATIENCE).with_interval(TCP_PATIENCE / 5)
}

#[cfg(feature = "tls")]
#[expect(clippy::unnecessary_wraps, reason = "without the feature it fails")]
fn prepare_tls() -> Result<(), UrlError> {
    // Err means that the program has chosen a provider already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Ok(())
}

#[cfg(not(feature = "tls"))]
fn prepare_tls() -> Result<(), UrlError> {
    Err(UrlError::NoTls)
}

fn name_of(info: &ConnectionInfo) -> String {
    let address = match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } if host.contains(':') => {
            format!("[{host}]:{port}")
        }
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => format!("{host}:{port}"),
        ConnectionAddr::Unix(path) => format!("unix:{}", path.display()),
        other => other.to_string(),
    };
    match info.redis_settings().db() {
        0 => address,
        database => format!("{address}/{database}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(url: &str) -> String {
        name_of(&connection_info(url).unwrap())
    }

    #[test]
    fn a_name_shows_the_address_and_no_secret() {
        assert_eq!(name("redis://locker:secret@10.0.0.1/3"), "10.0.0.1:6379/3");
        assert_eq!(name("redis://[::1]:7000"), "[::1]:7000");
        assert_eq!(name("unix:///run/redis.sock?db=2&pass=secret"), "unix:/run/redis.sock/2");
    }

    #[test]
    fn sentinels_are_hosts_and_the_name_of_a_set() {
        let parse = |url: &str| match Target::parse(url) {
            Ok(Target::Sentinels(sentinels)) => sentinels,
            _ => panic!("{url}"),
        };
        let found = parse("redis-sentinel://locker:secret@a,b:7000,[::1]/3?set=jobs");
        let addresses: Vec<String> =
            found.all.iter().map(|sentinel| sentinel.get_connection_info().addr().to_string()).collect();
        assert_eq!(addresses, ["a:26379", "b:7000", "::1:26379"]);
        let primary = found.primary_at("10.0.0.7".into(), 6_380).unwrap();
        assert_eq!(name_of(primary.get_connection_info()), "10.0.0.7:6380/3");
        assert_eq!(primary.get_connection_info().redis_settings().username(), Some("locker"));
        assert_eq!(Target::Sentinels(found).name(), "sentinel:jobs/3");
        for url in
            ["redis-sentinel://a", "redis-sentinel://a?set=", "redis-sentinel://?set=x", "redis-sentinel:a?set=x"]
        {
            assert!(matches!(Target::parse(url), Err(UrlError::Malformed)), "{url}");
        }
    }

    #[test]
    fn what_is_no_url_is_refused_without_being_shown() {
        for url in ["", "redis:secret@", "http://user:secret@host", "redis://:secret@host/notanumber"] {
            let error = connection_info(url).unwrap_err();
            assert_eq!(error, UrlError::Malformed, "{url}");
            assert!(!format!("{error:?} {error}").contains("secret"));
        }
    }

    /// What a URL looks like, with parts of it missing, twice, or where others belong.
    fn any_url() -> impl Strategy<Value = String> {
        let part = prop_oneof![
            "redis|rediss|unix|http|redis\\+unix|redis-sentinel",
            "://",
            "//",
            ":",
            "@",
            "/",
            "\\?db=",
            "\\?set=x",
            ",",
            "&pass=",
            "%",
            "#",
            "\\[::1\\]",
            "locker",
            "hunter2",
            "localhost",
            "[0-9]{1,6}",
            "\\PC{0,3}",
        ];
        proptest::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn no_url_is_too_strange(url in prop_oneof![any_url(), ".*"]) {
            match Target::parse(&url) {
                Ok(info) => prop_assert!(!info.name().is_empty()),
                Err(error) => prop_assert!(matches!(error, UrlError::Malformed | UrlError::NoTls)),
            }
        }

        /// The secret is written in a letter that stands nowhere else, percent-encoded or not.
        #[test]
        fn neither_name_nor_error_shows_a_secret(
            scheme in "redis|unix|redis-sentinel", user in "[a-m]{0,5}", secret in "z{1,5}(%7A|%40|%2F|%3A){0,3}z", host in "[a-m]{1,5}",
            port in any::<u32>(), database in "[a-m0-9-]{0,3}"
        ) {
            let url = match scheme.as_str() {
                "redis" => format!("redis://{user}:{secret}@{host}:{port}/{database}"),
                "redis-sentinel" => format!("redis-sentinel://{user}:{secret}@{host}:{port},{host}/{database}?set=jobs"),
                _ => format!("unix:///{host}?db={database}&user={user}&pass={secret}"),
            };
            let shown = match Target::parse(&url) {
                Ok(info) => info.name(),
                Err(error) => format!("{error:?} {error}"),
            };
            // The words of the errors have no such letter either.
            prop_assert!(!shown.contains('z'), "{shown}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_without_the_feature_is_refused() {
        assert_eq!(connection_info("rediss://host").unwrap_err(), UrlError::NoTls);
    }
}
