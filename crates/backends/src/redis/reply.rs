//! What a script's reply says, or that it says nothing that the contract knows.

use redis::Value;
use redlock_core::{
    Acquisition, Extension, Fingerprint, Health, HeldBy, Holder, Inspection, NodeError, Raising, Releasing, Remaining,
    Resource, Resources,
};
use std::time::Duration;

pub(super) fn acquisition(answer: &Value, resources: &Resources) -> Result<Acquisition, NodeError> {
    match answer {
        Value::Int(counter) => match u64::try_from(*counter) {
            Ok(counter) => Ok(Acquisition::Granted { counter }),
            Err(_) => Err(unexpected(answer)),
        },
        Value::Array(parts) => held(parts, resources).map(Acquisition::Held).ok_or_else(|| unexpected(answer)),
        _ => Err(unexpected(answer)),
    }
}

fn held(parts: &[Value], resources: &Resources) -> Option<HeldBy> {
    let [Value::Int(position), remaining, what, holder] = parts else {
        return None;
    };
    let position = usize::try_from(*position).ok()?.checked_sub(1)?;
    let resource = resources.iter().nth(position)?.clone();
    let holder = match text(what)?.as_str() {
        "owner" => Holder::Owner(Fingerprint::of(&text(holder)?)),
        "foreign" => Holder::Foreign { kind: text(holder)? },
        "line" => Holder::Line,
        _ => return None,
    };
    Some(HeldBy { resource, holder, remaining: remaining_of(remaining) })
}

fn remaining_of(pttl: &Value) -> Remaining {
    match pttl {
        Value::Int(-1) => Remaining::WithoutExpiry,
        Value::Int(millis) => {
            u64::try_from(*millis).map_or(Remaining::Unknown, |millis| Remaining::For(Duration::from_millis(millis)))
        }
        _ => Remaining::Unknown,
    }
}

pub(super) fn raising(answer: &Value) -> Result<Raising, NodeError> {
    match answer {
        Value::Nil => Ok(Raising::NotOwner),
        Value::Int(counter) => u64::try_from(*counter).map(Raising::At).map_err(|_| unexpected(answer)),
        _ => Err(unexpected(answer)),
    }
}

pub(super) fn extensions(answer: &Value) -> Result<Vec<Extension>, NodeError> {
    match answer {
        Value::Array(answers) => answers.iter().map(extension).collect(),
        _ => Err(unexpected(answer)),
    }
}

fn extension(answer: &Value) -> Result<Extension, NodeError> {
    match answer {
        Value::Int(1) => Ok(Extension::Extended),
        Value::Int(0) => Ok(Extension::Gone),
        Value::Int(-1) => Ok(Extension::NotOwner),
        _ => Err(unexpected(answer)),
    }
}

pub(super) fn releasing(answer: &Value) -> Result<Releasing, NodeError> {
    match answer {
        Value::Int(1) => Ok(Releasing::Released),
        Value::Int(2) => Ok(Releasing::PassedOn),
        Value::Int(0) => Ok(Releasing::Gone),
        Value::Int(-1) => Ok(Releasing::NotOwner),
        _ => Err(unexpected(answer)),
    }
}

pub(super) fn inspection(
    resource: &Resource,
    remaining: &Value,
    kind: &Value,
    holder: &Value,
    counter: &Value,
) -> Inspection {
    let held = match text(kind).as_deref() {
        None | Some("none") => None,
        Some("string") => Some(text(holder).map_or(Holder::Unknown, |owner| Holder::Owner(Fingerprint::of(&owner)))),
        Some(kind) => Some(Holder::Foreign { kind: kind.to_owned() }),
    };
    Inspection {
        resource: resource.clone(),
        held: held.map(|holder| HeldBy { resource: resource.clone(), holder, remaining: remaining_of(remaining) }),
        counter: text(counter).and_then(|counter| counter.parse().ok()),
    }
}

/// The answer to `TIME`: seconds and microseconds since 1970.
pub(super) fn time(answer: &Value) -> Option<Duration> {
    let Value::Array(parts) = answer else { return None };
    let [seconds, micros] = parts.as_slice() else {
        return None;
    };
    let seconds = text(seconds)?.parse().ok()?;
    let micros: u32 = text(micros)?.parse().ok()?;
    Some(Duration::new(seconds, micros.checked_mul(1_000)?))
}

/// One field of the answer to `INFO`.
pub(super) fn info_field<'a>(info: &'a str, field: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).map(str::trim)
}

/// Whether `INFO` calls the server a primary.
pub(super) fn is_primary(info: &str) -> Option<bool> {
    info_field(info, "role").map(|role| role == "master")
}

pub(super) fn read_info(health: &mut Health, info: &str) {
    let field = |name| info_field(info, name).map(str::to_owned);
    health.identity = field("run_id");
    health.primary = is_primary(info);
    health.replicas = info_field(info, "connected_slaves").and_then(|count| count.parse().ok());
    health.version = field("valkey_version").or_else(|| field("redis_version"));
    health.persistence = info_field(info, "aof_enabled").map(|enabled| match enabled {
        "1" => "append-only file".to_owned(),
        _ => "snapshots or none".to_owned(),
    });
    health.eviction_policy = field("maxmemory_policy");
}

/// A text, however the server wrapped it.
pub(super) fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    }
}

/// The kind of an answer, not its content: that may be somebody's data.
fn unexpected(answer: &Value) -> NodeError {
    let kind = match answer {
        Value::Nil => "nothing",
        Value::Int(_) => "an integer out of range",
        Value::Array(_) => "a list of another shape",
        Value::BulkString(_) | Value::SimpleString(_) | Value::VerbatimString { .. } | Value::Okay => "a text",
        _ => "a value of another kind",
    };
    NodeError::protocol(format!("a script answered {kind}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use redlock_core::IntoResources as _;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn a_refusal_names_resource_holder_and_time() {
        let resources = ["a", "b"].into_resources().unwrap();
        let answer = Value::Array(vec![Value::Int(2), Value::Int(1_500), bulk("owner"), bulk("0123456789abcdef")]);
        let Ok(Acquisition::Held(held)) = acquisition(&answer, &resources) else { panic!("{answer:?}") };
        assert_eq!(held.to_string(), "\"b\" held by 01234567… for 1.5s");
    }

    #[test]
    fn a_foreign_key_is_called_one() {
        let resources = "a".into_resources().unwrap();
        let answer = Value::Array(vec![Value::Int(1), Value::Int(-1), bulk("foreign"), bulk("hash")]);
        let Ok(Acquisition::Held(held)) = acquisition(&answer, &resources) else { panic!("{answer:?}") };
        assert_eq!(held.holder, Holder::Foreign { kind: "hash".into() });
        assert_eq!(held.remaining, Remaining::WithoutExpiry);
    }

    #[test]
    fn info_is_read_field_by_field() {
        let info = "# Server\r\nredis_version:7.0.15\r\nrun_id:abc\r\n# Replication\r\nrole:slave\r\n";
        assert_eq!(info_field(info, "run_id"), Some("abc"));
        assert_eq!(info_field(info, "run"), None);
        assert_eq!(is_primary(info), Some(false));
        assert_eq!(is_primary("# Server\r\n"), None);
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Nil),
            any::<i64>().prop_map(Value::Int),
            any::<Vec<u8>>().prop_map(Value::BulkString),
            ".*".prop_map(Value::SimpleString),
        ];
        leaf.prop_recursive(2, 16, 4, |inner| proptest::collection::vec(inner, 0..5).prop_map(Value::Array))
    }

    proptest! {
        /// Whatever a server sends, the answer is in the contract or an error, never a panic.
        #[test]
        fn no_reply_is_too_strange(answer in any_value()) {
            let resources = ["a", "b"].into_resources().unwrap();
            let _ = (acquisition(&answer, &resources), raising(&answer), extensions(&answer), releasing(&answer));
            let _ = (time(&answer), text(&answer));
        }
    }
}
