//! The fencing token and the grant that carries it.
//!
//! The token is all that crosses from the lock to the storage. This file says what a token *is*; the rule by which a
//! quorum mints one stands in [`crate::mint`], and nothing else in the crate makes one.

use crate::resource::{IntoResources, ResourceError, Resources};
use std::fmt;

/// A number that grows from grant to grant of a resource, `1 ..= 2^53 − 1`.
///
/// The storage remembers the highest token it has accepted and refuses a lower one, so a holder that was paused past
/// its time to live cannot write over its successor. Stored as a signed 64-bit integer in SQL; exact as a double in
/// JSON and in Redis' Lua. See Kleppmann, *How to do distributed locking* (2016).
///
/// ```compile_fail
/// // A token comes from a grant, or from the constructor whose name says what it trusts.
/// let token = redlock_core::FencingToken(7);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(i64);

impl FencingToken {
    /// The lowest token there is.
    pub const MIN: Self = Self(1);
    /// The highest token there is, `2^53 − 1`: beyond it a double no longer tells neighbours apart.
    pub const MAX: Self = Self((1 << 53) - 1);

    /// Trusts that `value` is the token of a grant, for one that arrived over a wire: in a job's message, a request's
    /// header, an environment variable.
    ///
    /// Nothing can check that claim. A token made up, incremented, or read from a node later on defeats the fence.
    ///
    /// # Errors
    /// [`TokenOutOfRange`] unless `1 <= value <= 2^53 − 1`.
    pub fn assume_granted(value: impl TryInto<i64>) -> Result<Self, TokenOutOfRange> {
        match value.try_into() {
            Ok(value) if Self::MIN.0 <= value && value <= Self::MAX.0 => Ok(Self(value)),
            _ => Err(TokenOutOfRange),
        }
    }

    /// The token as the signed 64-bit integer that SQL stores.
    #[must_use]
    pub fn get(self) -> i64 {
        self.0
    }

    /// The token as nodes count it.
    #[must_use]
    pub fn as_counter(self) -> u64 {
        self.0.unsigned_abs()
    }
}

impl fmt::Debug for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FencingToken({})", self.0)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A number that no grant can carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the fencing token is out of range; a token lies between 1 and 2^53 - 1")]
pub struct TokenOutOfRange;

/// What a won lock lets cross to the storage: the resources and the token they were granted under.
///
/// A guard lends its grant ([`AsRef<Grant>`]); a grant can be cloned and sent along, and says nothing about whether the
/// lock is still held. That is the point: the storage decides by the token.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Grant {
    resources: Resources,
    token: FencingToken,
}

impl Grant {
    pub(crate) fn new(resources: Resources, token: FencingToken) -> Self {
        Self { resources, token }
    }

    /// Trusts that `resources` (one name, or all that were granted together) were granted under `value`, for a grant that
    /// arrived over a wire.
    ///
    /// The same warning as at [`FencingToken::assume_granted`] holds.
    ///
    /// # Errors
    /// [`AssumeGrantedError`] if the name is not a resource's or the number not a token's.
    pub fn assume_granted(resources: impl IntoResources, value: impl TryInto<i64>) -> Result<Self, AssumeGrantedError> {
        Ok(Self::new(resources.into_resources()?, FencingToken::assume_granted(value)?))
    }

    /// The resources that were granted together.
    #[must_use]
    pub fn resources(&self) -> &Resources {
        &self.resources
    }

    /// The token, as it was minted; it never changes while the lock is held.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.token
    }
}

impl AsRef<Grant> for Grant {
    fn as_ref(&self) -> &Grant {
        self
    }
}

/// Why something that came over a wire cannot be a grant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AssumeGrantedError {
    /// The resource name is not one.
    #[error(transparent)]
    Resource(#[from] ResourceError),
    /// The number is not a token.
    #[error(transparent)]
    Token(#[from] TokenOutOfRange),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(value: impl TryInto<i64>, expected: Result<i64, TokenOutOfRange>) {
        assert_eq!(FencingToken::assume_granted(value).map(FencingToken::get), expected);
    }

    /// B57: what does not fit is refused with a type, never wrapped to a negative number.
    #[test]
    fn b57_a_token_outside_its_range_is_refused() {
        check(0, Err(TokenOutOfRange));
        check(-1, Err(TokenOutOfRange));
        check(1, Ok(1));
        check((1_i64 << 53) - 1, Ok((1 << 53) - 1));
        check(1_i64 << 53, Err(TokenOutOfRange));
        check(i64::MAX, Err(TokenOutOfRange));
        check(i64::MAX.unsigned_abs() + 1, Err(TokenOutOfRange));
        check(u64::MAX, Err(TokenOutOfRange));
    }
}
