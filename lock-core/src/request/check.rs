//! What is known to be wrong with a request before anything is sent.

use super::LockRequest;
use crate::{
    backend::BackendError,
    engine::terms::Terms,
    error::{ACQUIRE, Argument, Error},
    future::reentry,
    key::LockKey,
    mode::Mode,
    options::LeaseOptions,
};

impl<K> LockRequest<K> {
    /// Returns which option is out of its range, the manager's included, or not supported by the backend, for code that checks
    /// before it sends many requests.
    #[doc(hidden)]
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let checked = self.options.check().map_err(|(_, detail)| detail).and_then(|_| self.checked_mode());
        checked.err().or_else(|| self.refused().map(|error| error.to_string()))
    }

    /// Whether its durability and its permits, if it has any, are in their range and can be had of the backend.
    pub(crate) fn check_backend(&self) -> Result<(), Error> {
        if self.options.replicas().is_none() && !matches!(self.mode, Mode::Permits { .. }) {
            return Ok(());
        }
        self.terms()?;
        self.refused().map_or(Ok(()), |error| Err(Error::backend(ACQUIRE, None, error)))
    }

    /// Why its durability or its permits cannot be had of the backend, if it has any.
    fn refused(&self) -> Option<BackendError> {
        let replicas = self.options.replicas().and_then(|_| self.engine.backend.waits_for_replicas().err());
        let counts = matches!(self.mode, Mode::Permits { .. });
        replicas.or_else(|| if counts { self.engine.backend.counts_permits().err() } else { None })
    }

    fn terms(&self) -> Result<Terms, Error> {
        let checked = self.options.check();
        let (ttl, renewal) = checked.map_err(|(argument, detail)| Error::invalid(argument, ACQUIRE, detail))?;
        let LeaseOptions { max_hold, at_least, .. } = self.options;
        let at_least = at_least.unwrap_or_default();
        let mode = self.checked_mode().map_err(|detail| Error::invalid(Argument::Permits, ACQUIRE, detail))?;
        Ok(Terms { mode, ttl, renewal, max_hold, at_least, since: self.since, label: self.label })
    }

    /// The mode, or what is wrong with it.
    pub(crate) fn checked_mode(&self) -> Result<Mode, String> {
        if self.clashes {
            return Err("a key is shared or has permits; call `shared` or `permits`, and not both".to_owned());
        }
        match (self.mode, self.take) {
            (Mode::Permits { total, .. }, _) if !(1..=MOST_PERMITS).contains(&total) => {
                Err(format!("`permits({total})` is not between 1 and {MOST_PERMITS}"))
            }
            (Mode::Permits { total, take }, wanted) => {
                let take = wanted.unwrap_or(take);
                let mode = Mode::Permits { total, take };
                let is_possible = (1..=total).contains(&take);
                is_possible
                    .then_some(mode)
                    .ok_or_else(|| format!("`take({take})` of {total} permits is not between 1 and {total}"))
            }
            (mode, None) => Ok(mode),
            (Mode::Shared, Some(take)) => {
                Err(format!("`take({take})` belongs to `permits`; call `permits` in place of `shared`"))
            }
            (_, Some(take)) => Err(format!("`take({take})` belongs to `permits`; call `permits` too")),
        }
    }
}

impl LockRequest {
    /// The key and the terms, or what is wrong with them.
    pub(crate) fn check(&self) -> Result<(&LockKey, Terms), Error> {
        let key = self.keys.as_ref().map_err(Clone::clone)?;
        let terms = self.terms().map_err(|error| error.on(key))?;
        self.engine.warn_of_ttl(terms.ttl, Some(key));
        self.check_backend().map_err(|error| error.on(key))?;
        self.engine.admit(ACQUIRE).map_err(|error| error.on(key))?;
        // One that is taken up does not wait.
        if self.from.is_none() {
            reentry::refuse(&self.engine, key, terms.mode, self.since, self.tries_once())?;
        }
        Ok((key, terms))
    }
}

/// The largest total.
const MOST_PERMITS: u32 = 1_000_000;
