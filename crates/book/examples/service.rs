//! A web service (axum) whose writes are fenced, with metrics for Prometheus to scrape.
//!
//! ```sh
//! cargo run -p redlock-book --example service redis://127.0.0.1:7601 redis://127.0.0.1:7602 redis://127.0.0.1:7603
//! ```
//!
//! `POST /accounts/42/deposits/10` adds 10 to account 42; `GET /metrics` shows how the lock and the fence fare.

use std::error::Error;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use fence_store::{FenceError, FenceStore, Row};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use redlock_backends::RedisNode;
use redlock_core::{AcquireError, Redlock};
use sea_query::Query;
use sqlx::Sqlite;

/// What every request needs. One lock client and one store for the whole service.
#[derive(Debug)]
pub(crate) struct Shop {
    pub(crate) redlock: Redlock,
    pub(crate) store: FenceStore<Sqlite>,
    pub(crate) metrics: PrometheusHandle,
}

/// Makes the tables, unless they are there.
pub(crate) async fn prepare(store: &FenceStore<Sqlite>) -> Result<(), Box<dyn Error>> {
    let table = "CREATE TABLE IF NOT EXISTS accounts \
                 (id INTEGER PRIMARY KEY, balance BIGINT NOT NULL, fence_token BIGINT NOT NULL DEFAULT 0)";
    sqlx::query(table).execute(store.pool()).await?;
    sqlx::query("INSERT OR IGNORE INTO accounts (id, balance) VALUES (42, 100)").execute(store.pool()).await?;
    store.install_schema().await?;
    Ok(())
}

pub(crate) fn router(shop: Arc<Shop>) -> Router {
    Router::new()
        .route("/accounts/{id}/deposits/{amount}", post(deposit))
        .route("/metrics", get(metrics))
        .with_state(shop)
}

async fn deposit(State(shop): State<Arc<Shop>>, Path((id, amount)): Path<(i64, i64)>) -> Result<String, Trouble> {
    let guard = shop.redlock.acquire(["accounts/", &id.to_string()].concat()).await?;
    // Claim first: from here on nobody older can write this account.
    let account = shop.store.claim(&guard, &Row::new("accounts", "id", id), ["balance"]).await?;
    let balance = account.get::<i64>("balance")? + amount;
    account.update(Query::update().value("balance", balance)).await?;
    guard.release().await;
    Ok(balance.to_string())
}

async fn metrics(State(shop): State<Arc<Shop>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], shop.metrics.render())
}

/// What the caller of the service is told: whether to come again, and not what our servers are called.
pub(crate) enum Trouble {
    /// Somebody else has the account, or the lock's servers are away. Come again.
    Busy(AcquireError),
    /// We were too late, or the database did not do it.
    Refused(FenceError),
}

impl From<AcquireError> for Trouble {
    fn from(error: AcquireError) -> Self {
        Self::Busy(error)
    }
}

impl From<FenceError> for Trouble {
    fn from(error: FenceError) -> Self {
        Self::Refused(error)
    }
}

impl IntoResponse for Trouble {
    fn into_response(self) -> Response {
        match self {
            Self::Busy(AcquireError::Misconfigured(_) | AcquireError::Invalid(_)) => {
                (StatusCode::INTERNAL_SERVER_ERROR, "it is in our log\n").into_response()
            }
            Self::Busy(_) => (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], "busy\n").into_response(),
            Self::Refused(FenceError::NoSuchRow { .. }) => (StatusCode::NOT_FOUND, "no such account\n").into_response(),
            // A newer holder has written. Nothing of ours was, so the whole request may be made again.
            Self::Refused(FenceError::Stale { .. } | FenceError::Conflict { .. }) => {
                (StatusCode::CONFLICT, "again\n").into_response()
            }
            Self::Refused(_) => (StatusCode::INTERNAL_SERVER_ERROR, "it is in our log\n").into_response(),
        }
    }
}

#[allow(dead_code, reason = "the test calls the functions")]
#[allow(clippy::print_stdout, reason = "a program for the terminal")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut urls: Vec<String> = std::env::args().skip(1).collect();
    if urls.is_empty() {
        urls = (7601..7606).map(|port| format!("redis://127.0.0.1:{port}")).collect();
    }
    let nodes = RedisNode::connect_all(urls.iter().map(String::as_str)).await?;
    let redlock = Redlock::builder().nodes(nodes).build()?;
    let store = FenceStore::connect("sqlite:shop.db?mode=rwc").await?;
    prepare(&store).await?;
    // Installed once per program; the lock and the fence report to whatever is installed.
    let metrics = PrometheusBuilder::new().install_recorder()?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, router(Arc::new(Shop { redlock, store, metrics }))).await?;
    Ok(())
}
