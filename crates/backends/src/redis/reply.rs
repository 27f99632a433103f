//! What a script's reply says, or that it says nothing that the contract knows.

use redis::Value;
use redlock_core::{
    Acquisition, Extension, Fingerprint, Health, HeldBy, Holder, Inspection, NodeError, Raising, Releasing, Remaining,
    Resource, Resources, Service, Standing,
};
use std::time::Duration;

pub(super) fn acquisition(answer: &Value, resources: &Resources) -> Result<Acquisition, NodeError> {
    match answer {
        Value::Int(counter) => match u64::try_from(*counter) {
            Ok(counter) => Ok(Acquisition::Granted { counter }),
            Err(_) => Err(unexpected(answer)),
        },
        Value::Array(_) if is_quarantine(answer) => Err(NodeError::Quarantined { remaining: Duration::ZERO }),
        Value::Array(parts) => held(parts, resources).map(Acquisition::Held).ok_or_else(|| unexpected(answer)),
        _ => Err(unexpected(answer)),
    }
}

/// Whether a script that acquires says that the node does not serve under the crash-recovery guard.
pub(super) fn is_quarantine(answer: &Value) -> bool {
    let Value::Array(parts) = answer else { return false };
    matches!(parts.as_slice(), [Value::Int(0), _, what, _] if text(what).as_deref() == Some("quarantine"))
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

/// One answer for each of `leases`.
pub(super) fn extensions(answer: &Value, leases: usize) -> Result<Vec<Extension>, NodeError> {
    match answer {
        Value::Array(answers) if answers.len() == leases => answers.iter().map(extension).collect(),
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

/// How a node stands under the crash-recovery guard.
pub(super) fn standing(answer: &Value) -> Result<Standing, NodeError> {
    let Value::Array(parts) = answer else { return Err(unexpected(answer)) };
    let numbers: Option<Vec<i64>> =
        parts.iter().map(|part| if let Value::Int(number) = part { Some(*number) } else { None }).collect();
    let Some([serves, remaining, base, high, quarantine, noticed]) = numbers.as_deref() else {
        return Err(unexpected(answer));
    };
    let number = |value: &i64| u64::try_from(*value).map_err(|_| unexpected(answer));
    let service = match serves {
        1 => Service::Enrolled,
        0 => Service::Quarantined { remaining: Duration::from_millis(number(remaining)?) },
        _ => return Err(unexpected(answer)),
    };
    let quarantine = Duration::from_millis(number(quarantine)?);
    let loss = if *serves == 1 { None } else { Some(number(noticed)?) };
    Ok(Standing { service, base: number(base)?, high: number(high)?, quarantine, loss })
}

/// The answer to `TIME`: seconds and microseconds since 1970.
pub(super) fn time(answer: &Value) -> Option<Duration> {
    let Value::Array(parts) = answer else { return None };
    let [seconds, micros] = parts.as_slice() else {
        return None;
    };
    let seconds = text(seconds)?.parse().ok()?;
    let micros = text(micros)?.parse().ok().filter(|micros| *micros < 1_000_000)?;
    Some(Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros)))
}

/// One field of the answer to `INFO`.
pub(super) fn info_field<'a>(info: &'a str, field: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).map(str::trim)
}

/// The policy by which the server throws keys away when memory runs out, if it does.
pub(super) fn evicts(info: &str) -> Option<&str> {
    let policy = info_field(info, "maxmemory_policy")?;
    let bounded = info_field(info, "maxmemory").is_some_and(|bytes| bytes != "0");
    (bounded && policy != "noeviction").then_some(policy)
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

    /// Words and numbers that occur in right answers, so that wrong ones come near to them.
    fn any_text() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            any::<Vec<u8>>(),
            any::<u64>().prop_map(|number| number.to_string().into_bytes()),
            prop_oneof!["owner", "foreign", "line", "none", "string", "hash", "18446744073709551615", "-1", "999999"]
                .prop_map(String::into_bytes),
        ]
    }

    fn any_number() -> impl Strategy<Value = i64> {
        prop_oneof![any::<i64>(), -3_i64..5, Just(i64::MIN), Just(i64::MAX)]
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Nil),
            Just(Value::Okay),
            any_number().prop_map(Value::Int),
            any::<f64>().prop_map(Value::Double),
            any::<bool>().prop_map(Value::Boolean),
            any_text().prop_map(Value::BulkString),
            any_text().prop_map(|text| Value::SimpleString(String::from_utf8_lossy(&text).into_owned())),
            ".*".prop_map(|text| Value::VerbatimString { format: redis::VerbatimFormat::Text, text }),
        ];
        leaf.prop_recursive(3, 32, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::Set),
                proptest::collection::vec((inner.clone(), inner), 0..4).prop_map(Value::Map),
            ]
        })
    }

    /// An error of these functions is that the answer is none, and does not show it.
    fn is_told<T>(answer: Result<T, NodeError>) -> Result<Option<T>, TestCaseError> {
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(NodeError::Protocol(what)) if what.to_string().starts_with("a script answered ") => Ok(None),
            Err(other) => Err(TestCaseError::fail(format!("{other:?}"))),
        }
    }

    proptest! {
        /// Whatever a server sends, the answer is in the contract or an error, never a panic, and what is understood is what
        /// was said.
        #[test]
        fn no_reply_is_too_strange(answer in any_value(), leases in 0_usize..4) {
            let resources = ["a", "b"].into_resources().unwrap();
            let acquired = match acquisition(&answer, &resources) {
                Err(NodeError::Quarantined { .. }) => {
                    prop_assert!(matches!(&answer, Value::Array(parts) if parts[0] == Value::Int(0)));
                    Ok(None)
                }
                acquired => is_told(acquired),
            };
            match acquired? {
                Some(Acquisition::Granted { counter }) => {
                    prop_assert_eq!(Value::Int(i64::try_from(counter).unwrap()), answer.clone());
                }
                Some(Acquisition::Held(held)) => prop_assert!(resources.contains(held.resource.name())),
                None => {}
            }
            match is_told(raising(&answer))? {
                Some(Raising::At(counter)) => {
                    prop_assert_eq!(Value::Int(i64::try_from(counter).unwrap()), answer.clone());
                }
                Some(Raising::NotOwner) => prop_assert_eq!(&answer, &Value::Nil),
                None => {}
            }
            if let Some(extensions) = is_told(extensions(&answer, leases))? {
                prop_assert_eq!(extensions.len(), leases);
            }
            if let Some(standing) = is_told(standing(&answer))? {
                prop_assert!(i64::try_from(standing.base.max(standing.high)).is_ok());
            }
            if is_told(releasing(&answer))?.is_some() {
                prop_assert!(matches!(answer, Value::Int(-1..=2)));
            }
            let resource = resources.iter().next().unwrap();
            let seen = inspection(resource, &answer, &answer, &answer, &answer);
            prop_assert_eq!(&seen.resource, resource);
            let _ = (time(&answer), text(&answer));
        }

        /// A refusal says what the script said.
        #[test]
        fn a_refusal_is_read_as_it_was_written(
            position in 1_i64..=2, remaining in any_number(), foreign in any::<bool>(), what in "[a-z0-9]{2,40}"
        ) {
            let resources = ["a", "b"].into_resources().unwrap();
            let kind = if foreign { "foreign" } else { "owner" };
            let answer = Value::Array(vec![Value::Int(position), Value::Int(remaining), bulk(kind), bulk(&what)]);
            let Some(Acquisition::Held(held)) = is_told(acquisition(&answer, &resources))? else {
                return Err(TestCaseError::fail("a refusal was not read as one"));
            };
            prop_assert_eq!(held.resource.name(), ["a", "b"][usize::try_from(position - 1).unwrap()]);
            prop_assert_eq!(held.remaining, match remaining {
                -1 => Remaining::WithoutExpiry,
                ..=-2 => Remaining::Unknown,
                millis => Remaining::For(Duration::from_millis(millis.unsigned_abs())),
            });
            prop_assert_eq!(held.holder, match foreign {
                true => Holder::Foreign { kind: what },
                false => Holder::Owner(Fingerprint::of(&what)),
            });
        }

        /// `TIME` is read whatever a server says, and is not above what it said.
        #[test]
        fn no_time_is_too_late(seconds in any::<u64>(), micros in prop_oneof![0_u64..1_000_000, any::<u64>()]) {
            let answer = Value::Array(vec![bulk(&seconds.to_string()), bulk(&micros.to_string())]);
            let expected = (micros < 1_000_000)
                .then(|| Duration::from_secs(seconds).checked_add(Duration::from_micros(micros)).unwrap());
            prop_assert_eq!(time(&answer), expected);
        }

        /// `INFO` may say anything in any field.
        #[test]
        fn no_info_is_too_strange(
            field in prop_oneof!["role", "run_id", "connected_slaves", "aof_enabled", "redis_version"], value in "\\PC{0,40}"
        ) {
            let mut health = Health::default();
            read_info(&mut health, &format!("# Server\r\n{field}:{value}\r\nother:{value}\r\n"));
            let said = Some(value.trim().to_owned());
            match field.as_str() {
                "run_id" => prop_assert_eq!(health.identity, said),
                "redis_version" => prop_assert_eq!(health.version, said),
                "role" => prop_assert_eq!(health.primary, Some(value.trim() == "master")),
                "connected_slaves" => prop_assert_eq!(health.replicas, value.trim().parse().ok()),
                _ => prop_assert!(health.persistence.is_some()),
            }
        }
    }
}
