//! The nodes of a set-up, and a client of them.
//!
//! Opened without connecting: the first calls do that, each within its deadline, so that a node that is down costs no more
//! than its vote. A set-up that cannot work is told by what the nodes answer.

use crate::exit::{Exit, Failure, with_causes};
use crate::settings::{Settings, TlsSettings};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redlock_backends::RedisNode;
use redlock_core::tally::quorum_of;
use redlock_core::{LockNode, Redlock, RedlockBuilder};
#[cfg(feature = "tls")]
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long connecting to a node may take before the first question: far beyond what a healthy one needs, and short enough
/// for a person to wait.
const CONNECT_PATIENCE: Duration = Duration::from_millis(1_500);

/// How long the others are waited for, at the least, once a quorum has answered.
const LEAST_PATIENCE: Duration = Duration::from_millis(50);

/// Opens the nodes.
///
/// # Errors
/// [`Exit::Misconfigured`] if a URL is none; the node is named by its position, as the URL may hold a password.
pub fn open(settings: &Settings) -> Result<Vec<Arc<dyn LockNode>>, Failure> {
    let open = |(position, url): (usize, &crate::settings::SecretUrl)| {
        let node = open_one(url.expose(), &settings.tls)
            .map_err(|why| Failure::new(Exit::Misconfigured, format!("node {}: {why}", position + 1)))?;
        Ok(Arc::new(node) as Arc<dyn LockNode>)
    };
    settings.nodes.iter().enumerate().map(open).collect()
}

#[cfg(feature = "tls")]
fn open_one(url: &str, tls: &TlsSettings) -> Result<RedisNode, String> {
    use redlock_backends::redis::Certificates;
    if !url.starts_with("rediss:") || *tls == TlsSettings::default() {
        return RedisNode::open(url).map_err(|error| with_causes(&error));
    }
    let read = |file: &Path| std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()));
    let mut certificates = Certificates::new();
    if let Some(file) = &tls.ca {
        certificates = certificates.authority(read(file)?);
    }
    certificates = match (&tls.certificate, &tls.key) {
        (Some(certificate), Some(key)) => certificates.client(read(certificate)?, read(key)?),
        (None, None) => certificates,
        _ => return Err("under [tls], certificate and key belong together; name both".to_owned()),
    };
    RedisNode::open_with(url, &certificates).map_err(|error| with_causes(&error))
}

#[cfg(not(feature = "tls"))]
fn open_one(url: &str, _: &TlsSettings) -> Result<RedisNode, String> {
    RedisNode::open(url).map_err(|error| with_causes(&error))
}

/// Connects to all nodes at once and waits until a quorum has answered, and for as long again for the others, so that the
/// deadlines of what follows are not spent on handshakes. A frozen minority costs no more than that.
///
/// # Cancel safety
/// Dropping the future leaves nothing behind.
pub async fn warm_up(nodes: &[Arc<dyn LockNode>]) {
    let began = Instant::now();
    let greet = |node: &Arc<dyn LockNode>| {
        let node = Arc::clone(node);
        async move { node.health().await.is_ok() }
    };
    let mut greetings: FuturesUnordered<_> = nodes.iter().map(greet).collect();
    let (mut answered, mut end) = (0, began + CONNECT_PATIENCE);
    while let Ok(Some(answers)) = tokio::time::timeout_at(end, greetings.next()).await {
        answered += usize::from(answers);
        if answered == quorum_of(nodes.len()) {
            end = end.min(Instant::now() + began.elapsed().max(LEAST_PATIENCE));
        }
    }
}

/// The settings of a client, as far as they come from here.
pub fn builder(settings: &Settings, nodes: Vec<Arc<dyn LockNode>>, ttl: Duration) -> RedlockBuilder {
    let mut builder = Redlock::builder().nodes(nodes).key_prefix(settings.prefix.as_str()).ttl(ttl);
    if let Some(node_timeout) = settings.node_timeout {
        builder = builder.node_timeout(node_timeout);
    }
    if let Some(longest) = settings.crash_guard {
        builder = builder.crash_guard(longest);
    }
    if settings.allow_even_nodes {
        builder = builder.allow_even_nodes();
    }
    builder
}
