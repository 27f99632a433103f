//! The nodes of a set-up, and a client of them.
//!
//! Opened without connecting: the first calls do that, each within its deadline, so that a node that is down costs no more
//! than its vote. A set-up that cannot work is told by what the nodes answer.

use crate::exit::{Exit, Failure, with_causes};
use crate::settings::{SecretUrl, Settings, Tls};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redlock_backends::RedisNode;
use redlock_backends::redis::{Certificates, UrlError};
use redlock_core::tally::quorum_of;
use redlock_core::{LockNode, Redlock, RedlockBuilder};
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
    let open = |(position, url): (usize, &SecretUrl)| {
        let node = open_one(url, &settings.tls).map_err(|error| {
            Failure::new(Exit::Misconfigured, format!("node {}: {}", position + 1, with_causes(&error)))
        })?;
        Ok(Arc::new(node) as Arc<dyn LockNode>)
    };
    settings.nodes.iter().enumerate().map(open).collect()
}

/// Opens one node, with the certificates that were named if it speaks TLS.
///
/// # Errors
/// What is wrong with the URL, or with the certificates.
pub fn open_one(url: &SecretUrl, tls: &Tls) -> Result<RedisNode, UrlError> {
    if tls.is_plain() || !url.expose().starts_with("rediss:") {
        return RedisNode::open(url.expose());
    }
    let mut certificates = Certificates::new();
    if let Some(authority) = &tls.authority {
        certificates = certificates.authority(authority.clone());
    }
    if let Some((certificate, key)) = &tls.client {
        certificates = certificates.client(certificate.clone(), key.clone());
    }
    RedisNode::open_with(url.expose(), &certificates)
}

/// Connects to all nodes at once and waits until a quorum has answered, and for as long again for the others, so that the
/// deadlines of what follows are not spent on handshakes. A frozen minority costs no more than that. Says how long a quorum took,
/// which is how fast this machine and its nodes are at present; nothing, if there was none to learn it from.
///
/// # Cancel safety
/// Dropping the future leaves nothing behind.
pub async fn warm_up(nodes: &[Arc<dyn LockNode>]) -> Duration {
    let began = Instant::now();
    let greet = |node: &Arc<dyn LockNode>| {
        let node = Arc::clone(node);
        async move { node.health().await.is_ok() }
    };
    let mut greetings: FuturesUnordered<_> = nodes.iter().map(greet).collect();
    let (mut answered, mut end, mut took) = (0, began + CONNECT_PATIENCE, Duration::ZERO);
    while let Ok(Some(answers)) = tokio::time::timeout_at(end, greetings.next()).await {
        answered += usize::from(answers);
        if answered == quorum_of(nodes.len()) {
            took = began.elapsed();
            end = end.min(Instant::now() + took.max(LEAST_PATIENCE));
        }
    }
    took
}

/// The settings of a client, as far as they come from here.
pub fn builder(settings: &Settings, nodes: Vec<Arc<dyn LockNode>>, ttl: Duration) -> RedlockBuilder {
    let mut builder = Redlock::builder().nodes(nodes).key_prefix(settings.prefix.as_str()).ttl(ttl);
    if let Some(node_timeout) = settings.node_timeout {
        builder = builder.node_timeout(node_timeout);
    }
    if let Some(longest_ttl) = settings.crash_guard {
        builder = builder.crash_guard(longest_ttl);
    }
    builder = builder.lock_delay(settings.lock_delay);
    if settings.allow_even_nodes {
        builder = builder.allow_even_nodes();
    }
    builder
}
