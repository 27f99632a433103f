//! What the fence tells operators: one counter, and a line for every refusal.

use crate::dialect::Dialect;
use crate::error::FenceError;

/// Counts fenced operations by `database`, `operation` and `outcome`.
///
/// `outcome` is `applied`, `stale`, `already_written`, `no_such_row`, `conflict`, `unknown`, `lock_over`, `misconfigured` or `error`.
/// A `stale` that does not come with an expired lock deserves a look: somebody works under a token that is not theirs.
pub const OPERATIONS: &str = "fence_store_operations_total";

pub(crate) fn record<DB: Dialect, T>(operation: &'static str, result: &Result<T, FenceError>) {
    let outcome = match result {
        Ok(_) => "applied",
        Err(FenceError::Stale { .. }) => "stale",
        Err(FenceError::AlreadyWritten { .. }) => "already_written",
        Err(FenceError::NoSuchRow { .. }) => "no_such_row",
        Err(FenceError::Conflict { .. }) => "conflict",
        Err(FenceError::Unknown { .. }) => "unknown",
        Err(FenceError::LockOver { .. }) => "lock_over",
        Err(FenceError::SchemaMissing { .. } | FenceError::Column(_) | FenceError::Statement(_)) => "misconfigured",
        Err(FenceError::Database { .. }) => "error",
    };
    metrics::counter!(OPERATIONS, "database" => DB::NAME, "operation" => operation, "outcome" => outcome).increment(1);
    if let Err(error) = result {
        tracing::warn!(database = DB::NAME, operation, outcome, %error, "a fenced operation was not applied");
    }
}
