//! The few questions that the node asks etcd, in the JSON of its gateway (etcd documentation, *gRPC gateway*).
//!
//! Keys and values travel in base64, 64-bit numbers as text, and what is zero or false is left out. Nothing here asks twice.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use redlock_core::{NodeError, Refusal};
use reqwest::{Client, Url};
use serde_json::{Value, json};
use std::time::Duration;

/// How etcd is spoken to.
pub(super) struct Gateway {
    name: String,
    base: Url,
    client: Client,
}

/// A condition of a transaction.
pub(super) enum Compare {
    Absent(String),
    Value(String, String),
    /// The number of times that a key was written since it was made; zero if it is not there.
    Version(String, i64),
}

/// What a transaction does.
pub(super) enum Operation {
    Get(String),
    Put(String, String, Option<Lease>),
    Delete(String),
}

/// A lease, as etcd calls it.
#[derive(Clone)]
pub(super) struct Lease(String);

/// What came of a transaction.
pub(super) struct TransactionAnswer {
    pub(super) succeeded: bool,
    /// For each get among the operations that were done, in their order.
    pub(super) found: Vec<Option<Found>>,
}

#[derive(Clone)]
pub(super) struct Found {
    pub(super) value: String,
    pub(super) version: i64,
}

pub(super) struct Status {
    pub(super) cluster: String,
    pub(super) version: String,
}

fn encoded(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

fn strange(what: &'static str) -> NodeError {
    NodeError::protocol(format!("etcd's answer has no {what}"))
}

impl Compare {
    fn json(&self) -> Value {
        match self {
            Self::Absent(key) => Self::Version(key.clone(), 0).json(),
            Self::Value(key, value) => {
                json!({"target": "VALUE", "result": "EQUAL", "key": encoded(key), "value": encoded(value)})
            }
            Self::Version(key, version) => {
                json!({"target": "VERSION", "result": "EQUAL", "key": encoded(key), "version": version.to_string()})
            }
        }
    }
}

impl Operation {
    fn json(&self) -> Value {
        match self {
            Self::Get(key) => json!({"requestRange": {"key": encoded(key)}}),
            Self::Put(key, value, lease) => {
                let lease = lease.as_ref().map_or("0", |lease| &lease.0);
                json!({"requestPut": {"key": encoded(key), "value": encoded(value), "lease": lease}})
            }
            Self::Delete(key) => json!({"requestDeleteRange": {"key": encoded(key)}}),
        }
    }
}

impl Gateway {
    pub(super) fn new(url: &str) -> Result<Self, NodeError> {
        let refused = || NodeError::refused(Refusal::Configuration, "not an etcd URL; write http://host:2379");
        let base: Url = url.parse().map_err(|_| refused())?;
        let (Some(host), true, None) = (base.host_str(), base.scheme() == "http", base.password()) else {
            return Err(refused());
        };
        let name = format!("{host}:{}", base.port_or_known_default().unwrap_or_default());
        let client = Client::builder().no_proxy().build().map_err(NodeError::unreachable)?;
        Ok(Self { name, base, client })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// A lease that ends by itself after `ttl`, rounded up to whole seconds.
    pub(super) async fn lease(&self, ttl: Duration) -> Result<Lease, NodeError> {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() != 0);
        let answer = self.ask("v3/lease/grant", &json!({"TTL": seconds.to_string()})).await?;
        answer["ID"].as_str().map(|id| Lease(id.to_owned())).ok_or_else(|| strange("lease"))
    }

    /// Does `then` if all of `compare` is so, and `otherwise` if not, in one step.
    pub(super) async fn transaction(
        &self,
        compare: &[Compare],
        then: Vec<Operation>,
        otherwise: Vec<Operation>,
    ) -> Result<TransactionAnswer, NodeError> {
        let operations = |list: &[Operation]| list.iter().map(Operation::json).collect::<Vec<_>>();
        let compare: Vec<Value> = compare.iter().map(Compare::json).collect();
        let asked = json!({"compare": compare, "success": operations(&then), "failure": operations(&otherwise)});
        let answer = self.ask("v3/kv/txn", &asked).await?;
        let succeeded = answer["succeeded"].as_bool().unwrap_or(false);
        let responses = answer["responses"].as_array().map(Vec::as_slice).unwrap_or_default();
        let done = if succeeded { &then } else { &otherwise };
        if responses.len() != done.len() {
            return Err(strange("response for each operation"));
        }
        let gets = done.iter().zip(responses).filter(|(operation, _)| matches!(operation, Operation::Get(_)));
        let found = gets.map(|(_, response)| found(&response["response_range"])).collect::<Result<_, _>>()?;
        Ok(TransactionAnswer { succeeded, found })
    }

    pub(super) async fn status(&self) -> Result<Status, NodeError> {
        let answer = self.ask("v3/maintenance/status", &json!({})).await?;
        let cluster = answer["header"]["cluster_id"].as_str().ok_or_else(|| strange("cluster"))?.to_owned();
        let version = answer["version"].as_str().ok_or_else(|| strange("version"))?.to_owned();
        Ok(Status { cluster, version })
    }

    async fn ask(&self, path: &str, question: &Value) -> Result<Value, NodeError> {
        let url = self.base.join(path).map_err(NodeError::protocol)?;
        let question = question.to_string();
        let request = self.client.post(url).header("content-type", "application/json").body(question);
        let response = request.send().await.map_err(NodeError::unreachable)?;
        let status = response.status();
        let text = response.text().await.map_err(NodeError::unreachable)?;
        match status.as_u16() {
            200 => serde_json::from_str(&text).map_err(|_| NodeError::refused(Refusal::NotAServer, "no JSON")),
            status => Err(classify(status, text)),
        }
    }
}

/// Sorts an error by what can be done about it: by the code of gRPC as the gateway translates it, and by what etcd says where one
/// code means several things. There is no key or value in that.
fn classify(status: u16, text: String) -> NodeError {
    match status {
        // A cluster with users misses a name among the arguments.
        400 if text.contains("user name is empty") => NodeError::refused(Refusal::Authentication, text),
        401 => NodeError::refused(Refusal::Authentication, text),
        403 => NodeError::refused(Refusal::Permission, text),
        // The lease ended before the transaction came, which has done nothing then.
        404 if text.contains("lease not found") => NodeError::unreachable(text),
        404 => NodeError::refused(Refusal::NotAServer, "it knows no version 3 of the gateway"),
        // Behind with its work; otherwise it has no space left.
        429 if text.contains("too many requests") => NodeError::unreachable(text),
        429 => NodeError::refused(Refusal::CannotWrite, text),
        408 | 500.. => NodeError::unreachable(text),
        _ => NodeError::protocol(text),
    }
}

/// The only key of a range, if it is there.
fn found(range: &Value) -> Result<Option<Found>, NodeError> {
    let Some(one) = range["kvs"].get(0) else { return Ok(None) };
    let value = one["value"].as_str().unwrap_or_default();
    let value = BASE64_STANDARD.decode(value).ok().and_then(|value| String::from_utf8(value).ok());
    let version = one["version"].as_str().and_then(|version| version.parse().ok());
    let value = value.ok_or_else(|| strange("value"))?;
    Ok(Some(Found { value, version: version.ok_or_else(|| strange("version of a key"))? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_code_means_what_etcd_says_with_it() {
        let reason = |status, text: &str| match classify(status, text.to_owned()) {
            NodeError::Refused { reason, .. } => Ok(reason),
            error => Err(error.class()),
        };
        assert_eq!(reason(429, "etcdserver: mvcc: database space exceeded"), Ok(Refusal::CannotWrite));
        // It passes, so a release has to be tried again.
        assert_eq!(reason(429, "etcdserver: too many requests"), Err("unreachable"));
        assert_eq!(reason(404, "Not Found"), Ok(Refusal::NotAServer));
        assert_eq!(reason(404, "etcdserver: requested lease not found"), Err("unreachable"));
        assert_eq!(reason(400, "etcdserver: user name is empty"), Ok(Refusal::Authentication));
        assert_eq!(reason(400, "etcdserver: request is too large"), Err("protocol"));
        assert_eq!(reason(408, "context canceled"), Err("unreachable"));
        assert_eq!(reason(503, "etcdserver: leader changed"), Err("unreachable"));
    }
}
