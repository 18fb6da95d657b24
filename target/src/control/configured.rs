//! What is configured: by the file, and by what has been changed since.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use crate::config::{Change, Config, difference};

/// What a target that runs was configured with.
#[derive(Clone, Debug)]
pub struct Configured {
    /// The file; none for a target that a program embeds.
    pub file: Option<PathBuf>,
    /// What the file said when it was last read.
    pub filed: Config,
    /// What runs: the file, and what was changed by command since.
    pub running: Config,
    /// When that became so.
    pub since: SystemTime,
}

impl Configured {
    /// What was changed by command and is not in the file.
    pub fn unsaved(&self) -> Vec<Change> {
        difference(&self.filed, &self.running)
    }
}

/// What is configured now, for everybody who looks; only the manager changes it.
#[derive(Clone, Debug)]
pub(crate) struct Current(Arc<Mutex<Arc<Configured>>>);

impl Current {
    pub(super) fn new(file: Option<PathBuf>, config: &Config) -> Self {
        let configured =
            Configured { file, filed: config.clone(), running: config.clone(), since: SystemTime::now() };
        Self(Arc::new(Mutex::new(Arc::new(configured))))
    }

    pub(crate) fn get(&self) -> Arc<Configured> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set(&self, configured: Configured) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(configured);
    }
}
