//! Checks whether another server has taken over this server's store.

use evenkeel_client::output::Failure;
use evenkeel_store::Pool;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(250);

/// See the module's text.
pub struct Guard {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Guard {
    /// Calls `lost` once with the reason.
    pub fn over(
        pool: Arc<dyn Pool>,
        lost: impl FnOnce(String) + Send + 'static,
    ) -> Result<Self, Failure> {
        let (stop, stopped) = sync_channel::<()>(0);
        let look = move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(LOOK) {
                if pool.is_taken_over() {
                    let what = "another server has taken over the store, so this one may not use \
                                it any more";
                    return lost(what.to_owned());
                }
            }
        };
        let thread = std::thread::Builder::new().name("guard".to_owned()).spawn(look);
        let thread = thread.map_err(|error| Failure::new(format!("a thread: {error}")))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
