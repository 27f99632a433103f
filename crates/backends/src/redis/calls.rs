//! Hears the calls for waiters: one connection besides the link's, for as long as somebody waits.
//!
//! A server can call only those who have subscribed, and a connection that has does little else; so it is another one, made
//! when a client first has to wait, and given up when nobody has waited for a while. Losing it loses calls and nothing else:
//! all waiters are told to look for themselves, and the next one that waits makes it anew.

use super::keys;
use super::link::{self, Link};
use super::trouble;
use futures_util::StreamExt as _;
use redlock_core::{Bell, KeyPrefix, Listener, NodeError};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// The longest that subscribing may take, connecting included.
const SUBSCRIBE_LIMIT: Duration = Duration::from_secs(1);

/// How long a connection on which nobody is called any more is kept.
const IDLE: Duration = Duration::from_secs(5);

/// The shortest time for which a subscription counts as standing, even if the server ends it sooner: those who hear nothing are
/// told so then, and not in a busy loop.
const SHORTEST: Duration = Duration::from_millis(20);

/// How long a server that could not be subscribed to is not asked again…
const PAUSE: Duration = Duration::from_millis(200);

/// …and one that does not allow it.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);

/// One node's subscriptions, one for each client that uses the node.
#[derive(Default)]
pub(super) struct Calls {
    hearings: Mutex<HashMap<Arc<str>, Hearing>>,
    /// It has been said already that this is not allowed.
    said: Arc<AtomicBool>,
}

struct Hearing {
    ready: watch::Receiver<Option<Result<(), NodeError>>>,
    task: AbortHandle,
    since: Instant,
}

impl Hearing {
    /// Whether it hears, or is about to, or failed so lately that trying again is no use.
    fn stands(&self) -> bool {
        match &*self.ready.borrow() {
            None => !self.task.is_finished() && self.since.elapsed() < 2 * SUBSCRIBE_LIMIT,
            Some(Ok(())) => !self.task.is_finished(),
            Some(Err(NodeError::Refused { .. })) => self.since.elapsed() < REFUSED_PAUSE,
            Some(Err(_)) => self.since.elapsed() < PAUSE,
        }
    }
}

impl Drop for Hearing {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Calls {
    /// Returns once calls for the listener are heard.
    pub(super) async fn listen(
        &self,
        link: &Arc<Link>,
        prefix: &KeyPrefix,
        listener: &Listener,
    ) -> Result<(), NodeError> {
        let mut ready = {
            let mut hearings = self.hearings();
            match hearings.get(listener.name()) {
                Some(hearing) if hearing.stands() => hearing.ready.clone(),
                _ => {
                    hearings.retain(|_, hearing| hearing.stands());
                    let hearing = self.begin(link, keys::channel(prefix, listener.name()), listener.bell());
                    let ready = hearing.ready.clone();
                    hearings.insert(Arc::clone(listener.name()), hearing);
                    ready
                }
            }
        };
        if let Some(answer) = &*ready.borrow() {
            return answer.clone();
        }
        let answer = ready.wait_for(Option::is_some).await.ok().and_then(|answer| answer.clone());
        answer.unwrap_or_else(|| Err(NodeError::unreachable("the runtime that was subscribing does not run any more")))
    }

    fn hearings(&self) -> MutexGuard<'_, HashMap<Arc<str>, Hearing>> {
        self.hearings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, link: &Arc<Link>, channel: String, bell: &Arc<Bell>) -> Hearing {
        let (tell, ready) = watch::channel(None);
        let (target, node) = (Arc::clone(link.target()), link.name().to_owned());
        let (bell, said) = (Arc::downgrade(bell), Arc::clone(&self.said));
        let hear = async move {
            let subscribing = async {
                let client = link::client(&target).await?;
                let mut subscription = client.get_async_pubsub().await.map_err(trouble::classify)?;
                subscription.subscribe(&channel).await.map_err(trouble::classify)?;
                Ok(subscription)
            };
            let subscribed = match tokio::time::timeout(SUBSCRIBE_LIMIT, subscribing).await {
                Ok(subscribed) => subscribed,
                Err(_) => Err(NodeError::unreachable(format!("no subscription within {SUBSCRIBE_LIMIT:?}"))),
            };
            match subscribed {
                Ok(subscription) => {
                    let ends = Instant::now() + SHORTEST;
                    let _ = tell.send(Some(Ok(())));
                    hear(subscription, &bell).await;
                    tokio::time::sleep_until(ends).await;
                    if let Some(bell) = bell.upgrade() {
                        bell.ring_all();
                    }
                }
                Err(error) => {
                    if matches!(error, NodeError::Refused { .. }) && !said.swap(true, Ordering::Relaxed) {
                        let error: &dyn std::error::Error = &error;
                        tracing::warn!(
                            node,
                            error,
                            "waiters are not called here, they ask at intervals; allow SUBSCRIBE"
                        );
                    }
                    let _ = tell.send(Some(Err(error)));
                }
            }
        };
        let task = tokio::runtime::Handle::current().spawn(hear).abort_handle();
        Hearing { ready, task, since: Instant::now() }
    }
}

/// Passes calls on until the connection breaks, the client is gone, or nobody has waited for a while.
async fn hear(mut subscription: redis::aio::PubSub, bell: &Weak<Bell>) {
    let mut calls = subscription.on_message();
    let mut idle = false;
    loop {
        match tokio::time::timeout(IDLE, calls.next()).await {
            Ok(Some(call)) => {
                let Some(bell) = bell.upgrade() else { return };
                if let Ok(ticket) = call.get_payload::<u64>() {
                    bell.ring(ticket);
                }
                idle = false;
            }
            Ok(None) => return,
            Err(_) => match bell.upgrade() {
                Some(bell) if !(bell.is_idle() && idle) => idle = bell.is_idle(),
                _ => return,
            },
        }
    }
}
