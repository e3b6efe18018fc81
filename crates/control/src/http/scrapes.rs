//! The replies to scrapes that are being sent: a few at a time, however slowly clients read.
//!
//! A scrape needs no signature, and with ten thousand volumes its reply has some 16 MB. So the
//! number of replies in memory is limited. A further reply closes the connection of the oldest: a
//! client that reads has received its reply long before.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use axum::body::Bytes;

use super::slot::Slot;

/// Maximum number of replies to scrapes in memory.
pub const REPLIES_MAX: usize = 4;

/// See the module's text.
#[derive(Debug, Default)]
pub struct Scrapes {
    sending: Mutex<VecDeque<Sending>>,
}

#[derive(Debug)]
struct Sending {
    text: Weak<str>,
    slot: Weak<Slot>,
}

/// The bytes of a reply, which are freed when the last of them are sent or the connection ends.
struct Text(Arc<str>);

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl Scrapes {
    /// Returns the body of a reply on the connection of this slot.
    pub fn reply(&self, slot: &Arc<Slot>, text: String) -> Bytes {
        let text: Arc<str> = text.into();
        // Nothing here can fail between two related changes.
        let mut sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        sending.retain(|sending| sending.text.strong_count() > 0);
        while sending.len() >= REPLIES_MAX {
            let oldest = sending.pop_front().and_then(|oldest| oldest.slot.upgrade());
            if let Some(slot) = oldest {
                slot.evict();
            }
        }
        sending.push_back(Sending { text: Arc::downgrade(&text), slot: Arc::downgrade(slot) });
        Bytes::from_owner(Text(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::slot::Slots;
    use std::net::{IpAddr, Ipv4Addr};

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[tokio::test]
    async fn replies_beyond_the_bound_end_the_connections_of_the_oldest() {
        let slots = Arc::<Slots>::default();
        let scrapes = Scrapes::default();
        let mut all = Vec::new();
        for number in 0..REPLIES_MAX + 2 {
            let (slot, evicted) = slots.take(HERE).await;
            let text = scrapes.reply(&slot, format!("reply {number}"));
            assert_eq!(text, format!("reply {number}"));
            all.push((slot, evicted, Some(text)));
        }
        for (number, (_, evicted, _)) in all.iter_mut().enumerate() {
            assert_eq!(evicted.try_recv().is_ok(), number < 2, "{number}");
        }
        // Two have been sent: there is room for two more.
        all[2].2 = None;
        all[3].2 = None;
        for _ in 0..2 {
            let (slot, evicted) = slots.take(HERE).await;
            let text = scrapes.reply(&slot, String::new());
            all.push((slot, evicted, Some(text)));
        }
        assert!(all[4].1.try_recv().is_err() && all[5].1.try_recv().is_err());
    }
}
