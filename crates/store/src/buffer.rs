//! Payload memory: page-aligned so that the kernel can move it to and from a disk without a copy.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Alignment of every buffer in bytes: one page, which is enough for O_DIRECT everywhere.
pub const ALIGNMENT_BYTES: usize = 4_096;

/// Owned, page-aligned memory. A buffer that is given to the kernel may not be used until the
/// kernel has returned it.
#[derive(Debug)]
pub struct Buffer {
    memory: NonNull<u8>,
    capacity: usize,
}

// SAFETY: a Buffer owns its memory exclusively, as a Box<[u8]> would.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Creates a zeroed buffer of `capacity` bytes, rounded up to whole pages (at least one).
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let layout = Self::layout(capacity.max(1).next_multiple_of(ALIGNMENT_BYTES));
        // SAFETY: the layout has a size of at least one page, so it is not zero.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout) };
        Self { memory, capacity: layout.size() }
    }

    /// Returns the capacity in bytes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns all bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: memory is valid for capacity bytes, initialised at allocation, and borrowed with
        // self.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.capacity) }
    }

    /// Returns all bytes, writable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and self is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.capacity) }
    }

    /// Returns the address of the memory. It stays the same while the buffer lives, even if the
    /// `Buffer` itself is moved.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    fn layout(capacity: usize) -> Layout {
        match Layout::from_size_align(capacity, ALIGNMENT_BYTES) {
            Ok(layout) => layout,
            Err(_) => unreachable!("a buffer of {capacity} bytes is beyond the address space"),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this very layout, and not freed since.
        unsafe { dealloc(self.memory.as_ptr(), Self::layout(self.capacity)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_whole_aligned_pages() {
        for capacity in [0, 1, 512, 4_096, 4_097, 256 << 10] {
            let mut buffer = Buffer::new(capacity);
            assert_eq!(buffer.as_ptr().addr() % ALIGNMENT_BYTES, 0);
            assert!(
                buffer.capacity() >= capacity && buffer.capacity().is_multiple_of(ALIGNMENT_BYTES)
            );
            assert!(buffer.bytes().iter().all(|&b| b == 0));
            buffer.bytes_mut().fill(7);
        }
    }
}
