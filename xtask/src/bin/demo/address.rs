//! URLs as they may be shown, and as they lead through a relay.

use std::net::{SocketAddr, ToSocketAddrs};

use anyhow::{Context, Result, ensure};
use url::Url;

/// Where the URL leads, without user, password and parameters.
pub(crate) fn shown(url: &str) -> String {
    let Ok(mut url) = Url::parse(url) else {
        return "a URL that cannot be read".into();
    };
    // Fails for URLs that have no place for them.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.into()
}

/// A Redis server that was given by its URL.
#[derive(Debug)]
pub(crate) struct Given {
    url: Url,
    /// How people call it.
    pub(crate) label: String,
}

impl Given {
    pub(crate) fn new(text: &str) -> Result<Self> {
        let label = shown(text);
        let url = Url::parse(text).with_context(|| format!("{label} is not a URL; write redis://host:port"))?;
        ensure!(
            matches!(url.scheme(), "redis" | "valkey"),
            "{label}: the demo puts a relay in front of each given server, which works with redis:// only"
        );
        let host = url.host_str().filter(|host| !host.is_empty()).with_context(|| format!("{label} names no host"))?;
        let label = [host, ":", &url.port().unwrap_or(6379).to_string()].concat();
        Ok(Self { url, label })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> Result<SocketAddr> {
        let found = self.label.to_socket_addrs().with_context(|| format!("{} cannot be found", self.label))?;
        // Most servers listen on the older kind if on one only.
        let mut found: Vec<SocketAddr> = found.collect();
        found.sort_by_key(SocketAddr::is_ipv6);
        found.first().copied().with_context(|| format!("{} has no address", self.label))
    }

    /// The same server with the same credentials, by way of `relay`.
    pub(crate) fn through(&self, relay: SocketAddr) -> Result<String> {
        let mut url = self.url.clone();
        url.set_ip_host(relay.ip()).ok().context("the URL has a place for a host")?;
        url.set_port(Some(relay.port())).ok().context("the URL has a place for a port")?;
        Ok(url.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        assert_eq!(shown("postgres://ann:secret@db:5432/shop?password=secret"), "postgres://db:5432/shop");
        assert_eq!(shown("sqlite:shop.db?mode=rwc"), "sqlite:shop.db");
        assert_eq!(shown("secret"), "a URL that cannot be read");
        let error = Given::new("rediss://:secret@a").unwrap_err();
        assert!(!format!("{error:#}").contains("secret"), "{error:#}");
    }

    #[test]
    fn credentials_and_database_go_through_the_relay() {
        let given = Given::new("redis://ann:secret@example.org/3").unwrap();
        assert_eq!(given.label, "example.org:6379");
        let through = given.through(([127, 0, 0, 1], 4711).into()).unwrap();
        assert_eq!(through, "redis://ann:secret@127.0.0.1:4711/3");
    }
}
