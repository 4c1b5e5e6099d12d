//! How many nodes of a quorum have to agree, and the error when too few can; pure.

use crate::{backend::BackendError, error::ErrorKind};

/// The smallest majority of so many nodes.
pub(super) fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// The error of an operation that too few nodes voted on; `elsewhere` says that it may have happened where nothing failed.
pub(super) fn too_few(nodes: usize, failures: &[BackendError], elsewhere: bool) -> BackendError {
    let mut told: Vec<String> = failures.iter().map(ToString::to_string).collect();
    told.dedup();
    let kind = match failures.split_first() {
        Some((first, others)) if others.iter().all(|error| error.kind() == first.kind()) => first.kind(),
        _ => ErrorKind::Backend,
    };
    let (failed, most) = (failures.len(), majority(nodes));
    let why = if told.is_empty() { "the others do not have the lease".to_owned() } else { told.join("; ") };
    let message = format!("{failed} of {nodes} nodes failed, and a lock needs {most}: {why}");
    let error = BackendError::new(kind, message);
    let in_doubt = elsewhere || failures.iter().any(BackendError::may_have_happened);
    if in_doubt { error } else { error.did_not_happen() }
}
