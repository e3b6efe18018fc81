//! The request that the thread executes, and the reason why it reverts a change. Events of notices
//! have both; the model's events have neither.

use std::cell::RefCell;

#[derive(Default)]
struct Context {
    request: String,
    cause: String,
}

thread_local! {
    static CONTEXT: RefCell<Context> = RefCell::default();
}

/// A part of the context, which is set until this is dropped.
#[must_use]
pub struct During {
    before: String,
    part: fn(&mut Context) -> &mut String,
}

impl During {
    fn begin(value: &str, part: fn(&mut Context) -> &mut String) -> Self {
        let value = value.to_owned();
        let before = CONTEXT.with_borrow_mut(|context| std::mem::replace(part(context), value));
        Self { before, part }
    }

    /// Sets the request whose changes follow.
    pub fn request(id: &str) -> Self {
        Self::begin(id, |context| &mut context.request)
    }

    /// Sets the reason for which changes are reverted.
    pub fn because(reason: &str) -> Self {
        Self::begin(reason, |context| &mut context.cause)
    }
}

impl Drop for During {
    fn drop(&mut self) {
        let before = std::mem::take(&mut self.before);
        CONTEXT.with_borrow_mut(|context| *(self.part)(context) = before);
    }
}

/// Returns the request that this thread executes; empty if there is none.
pub(super) fn request() -> String {
    CONTEXT.with_borrow(|context| context.request.clone())
}

/// Returns the reason why this thread reverts a change; empty if it reverts none or the reason is
/// unknown.
pub(super) fn cause() -> String {
    CONTEXT.with_borrow(|context| context.cause.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_and_cause_end_with_their_scope() {
        let during = During::request("r-1");
        {
            let _cause = During::because("no room");
            let _inner = During::because("no room at all");
            assert_eq!((request(), cause()), ("r-1".to_owned(), "no room at all".to_owned()));
        }
        assert_eq!((request(), cause()), ("r-1".to_owned(), String::new()));
        drop(during);
        assert_eq!(request(), "");
    }
}
