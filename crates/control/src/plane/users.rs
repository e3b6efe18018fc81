//! Changes of users. The data plane takes no part in them.

use evenkeel_os::clock;

use super::{Plane, PlaneError};
use crate::journal::Credits;
use crate::model::users::{UserChange, UserRefusal};

/// Why a user was not changed.
#[derive(Debug)]
pub enum UserError {
    /// The model refused the change.
    Refused(UserRefusal),
    /// The journal failed.
    Failed(PlaneError),
}

impl Plane {
    /// Changes a user. When this returns, the change is durable and in force: a removed key signs
    /// no further request.
    ///
    /// # Errors
    /// See [`UserError`].
    pub fn change_user(&self, name: &str, change: &UserChange) -> Result<(), UserError> {
        let mut writer = self.writer().map_err(UserError::Failed)?;
        let events = self.model().change_user(name, change, clock::unix_ms());
        let events = events.map_err(UserError::Refused)?;
        if events.is_empty() {
            return Ok(());
        }
        self.commit(&mut writer, events, &Credits::default()).map_err(UserError::Failed)
    }
}
