//! librados and librbd, loaded when a pool on Ceph is opened: the program starts without them. Both
//! libraries have had all of these functions unchanged since Ceph 16.2 (Pacific).

use libloading::Library as Shared;
use std::ffi::{c_char, c_int, c_uchar, c_void};
use std::sync::OnceLock;

/// File names of the libraries.
const RADOS: &str = "librados.so.2";
const RBD: &str = "librbd.so.1";

/// A connection, pool, image, completion, set of options, group of operations, or list of the
/// libraries.
pub(super) type Handle = *mut c_void;

/// Called for each range of a difference, with offset, length, whether it has data, and argument.
pub(super) type OnDifference = extern "C" fn(u64, usize, c_int, *mut c_void) -> c_int;

/// `rbd_image_spec_t`: the id and the name of an image, which the library has made.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ImageSpec {
    pub(super) id: *mut c_char,
    pub(super) name: *mut c_char,
}

/// `RBD_LOCK_MODE_EXCLUSIVE`.
pub(super) const LOCK_EXCLUSIVE: c_int = 0;
/// `EVENT_TYPE_EVENTFD`.
pub(super) const EVENT_TYPE_EVENTFD: c_int = 2;
/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`: the range stays allocated.
pub(super) const ZEROES_KEEP: c_int = 1;
/// `RBD_IMAGE_OPTION_FEATURES`, `_ORDER` and `_CLONE_FORMAT`.
pub(super) const OPTION_FEATURES: c_int = 1;
pub(super) const OPTION_ORDER: c_int = 2;
pub(super) const OPTION_CLONE_FORMAT: c_int = 12;
/// `LIBRADOS_CMPXATTR_OP_EQ`.
pub(super) const EQUAL: u8 = 1;

macro_rules! library {
    ($(from $shared:ident $(fn $name:ident($($argument:ty),*) $(-> $result:ty)?;)*)*) => {
        /// The functions, by their own names.
        pub(super) struct Library {
            $($(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*)*
        }

        impl Library {
            fn new(rados: &Shared, rbd: &Shared) -> Result<Self, String> {
                let ($($shared,)*) = (rados, rbd);
                Ok(Self { $($($name: function($shared, stringify!($name))?,)*)* })
            }
        }
    };
}

library! {
    from rados
    fn rados_create2(*mut Handle, *const c_char, *const c_char, u64) -> c_int;
    fn rados_conf_read_file(Handle, *const c_char) -> c_int;
    fn rados_conf_set(Handle, *const c_char, *const c_char) -> c_int;
    fn rados_conf_get(Handle, *const c_char, *mut c_char, usize) -> c_int;
    fn rados_connect(Handle) -> c_int;
    fn rados_shutdown(Handle);
    fn rados_cluster_fsid(Handle, *mut c_char, usize) -> c_int;
    fn rados_getaddrs(Handle, *mut *mut c_char) -> c_int;
    fn rados_buffer_free(*mut c_char);
    fn rados_wait_for_latest_osdmap(Handle) -> c_int;
    fn rados_mon_command(
        Handle, *const *const c_char, usize, *const c_char, usize, *mut *mut c_char, *mut usize,
        *mut *mut c_char, *mut usize
    ) -> c_int;
    fn rados_mgr_command(
        Handle, *const *const c_char, usize, *const c_char, usize, *mut *mut c_char, *mut usize,
        *mut *mut c_char, *mut usize
    ) -> c_int;
    fn rados_ioctx_create(Handle, *const c_char, *mut Handle) -> c_int;
    fn rados_ioctx_destroy(Handle);
    fn rados_ioctx_set_namespace(Handle, *const c_char);
    fn rados_set_pool_full_try(Handle);
    fn rados_create_write_op() -> Handle;
    fn rados_release_write_op(Handle);
    fn rados_write_op_create(Handle, c_int, *const c_char);
    fn rados_write_op_omap_set2(
        Handle, *const *const c_char, *const *const c_char, *const usize, *const usize, usize
    );
    fn rados_write_op_omap_cmp2(
        Handle, *const c_char, u8, *const c_char, usize, usize, *mut c_int
    );
    fn rados_write_op_omap_rm_keys2(Handle, *const *const c_char, *const usize, usize);
    fn rados_write_op_operate(Handle, Handle, *const c_char, *mut libc::time_t, c_int) -> c_int;
    fn rados_create_read_op() -> Handle;
    fn rados_release_read_op(Handle);
    fn rados_read_op_omap_get_vals2(
        Handle, *const c_char, *const c_char, u64, *mut Handle, *mut c_uchar, *mut c_int
    );
    fn rados_read_op_omap_get_vals_by_keys2(
        Handle, *const *const c_char, usize, *const usize, *mut Handle, *mut c_int
    );
    fn rados_read_op_operate(Handle, Handle, *const c_char, c_int) -> c_int;
    fn rados_omap_get_next2(
        Handle, *mut *mut c_char, *mut *mut c_char, *mut usize, *mut usize
    ) -> c_int;
    fn rados_omap_get_end(Handle);

    from rbd
    fn rbd_namespace_create(Handle, *const c_char) -> c_int;
    fn rbd_namespace_exists(Handle, *const c_char, *mut bool) -> c_int;
    fn rbd_image_options_create(*mut Handle);
    fn rbd_image_options_set_uint64(Handle, c_int, u64) -> c_int;
    fn rbd_image_options_destroy(Handle);
    fn rbd_create4(Handle, *const c_char, u64, Handle) -> c_int;
    fn rbd_clone3(
        Handle, *const c_char, *const c_char, Handle, *const c_char, Handle
    ) -> c_int;
    fn rbd_remove(Handle, *const c_char) -> c_int;
    fn rbd_list2(Handle, *mut ImageSpec, *mut usize) -> c_int;
    fn rbd_image_spec_list_cleanup(*mut ImageSpec, usize);
    fn rbd_open(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    fn rbd_open_read_only(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    fn rbd_close(Handle) -> c_int;
    fn rbd_get_size(Handle, *mut u64) -> c_int;
    fn rbd_metadata_get(Handle, *const c_char, *mut c_char, *mut usize) -> c_int;
    fn rbd_metadata_set(Handle, *const c_char, *const c_char) -> c_int;
    fn rbd_resize(Handle, u64) -> c_int;
    fn rbd_snap_create(Handle, *const c_char) -> c_int;
    fn rbd_snap_remove(Handle, *const c_char) -> c_int;
    fn rbd_lock_acquire(Handle, c_int) -> c_int;
    fn rbd_lock_release(Handle) -> c_int;
    fn rbd_lock_get_owners(Handle, *mut c_int, *mut *mut c_char, *mut usize) -> c_int;
    fn rbd_lock_get_owners_cleanup(*mut *mut c_char, usize);
    fn rbd_lock_break(Handle, c_int, *const c_char) -> c_int;
    fn rbd_diff_iterate2(
        Handle, *const c_char, u64, u64, u8, u8, OnDifference, *mut c_void
    ) -> c_int;
    fn rbd_read(Handle, u64, usize, *mut c_char) -> isize;
    fn rbd_write(Handle, u64, usize, *const c_char) -> isize;
    fn rbd_set_image_notification(Handle, c_int, c_int) -> c_int;
    fn rbd_poll_io_events(Handle, *mut Handle, c_int) -> c_int;
    fn rbd_aio_create_completion(
        *mut c_void, Option<extern "C" fn(Handle, *mut c_void)>, *mut Handle
    ) -> c_int;
    fn rbd_aio_get_arg(Handle) -> *mut c_void;
    fn rbd_aio_get_return_value(Handle) -> isize;
    fn rbd_aio_release(Handle);
    fn rbd_aio_read(Handle, u64, usize, *mut c_char, Handle) -> c_int;
    fn rbd_aio_write(Handle, u64, usize, *const c_char, Handle) -> c_int;
    fn rbd_aio_write_zeroes(Handle, u64, usize, Handle, c_int, c_int) -> c_int;
    fn rbd_aio_flush(Handle, Handle) -> c_int;
}

/// Loads a function of a library.
fn function<T: Copy>(shared: &Shared, name: &str) -> Result<T, String> {
    // SAFETY: each type in `library!` is that of the function's declaration in the library's
    // header, which its major version fixes.
    let found = unsafe { shared.get::<T>(name.as_bytes()) };
    found.map(|function| *function).map_err(|error| {
        format!("{name} is missing ({error}); Ceph 16.2 (Pacific) or newer is needed")
    })
}

fn load(rados: &str, rbd: &str) -> Result<Library, String> {
    let shared = |name: &str, package: &str| {
        // SAFETY: these are the system's own libraries, whose initialisation is meant to be run.
        unsafe { Shared::new(name) }.map_err(|error| {
            format!(
                "the store \"rbd\" needs {name}, which cannot be loaded: {error}; install it \
                 (Debian: apt-get install {package})"
            )
        })
    };
    let rados = shared(rados, "librados2")?;
    let rbd = shared(rbd, "librbd1")?;
    let library = Library::new(&rados, &rbd)?;
    // The libraries' threads may run until the process ends.
    std::mem::forget((rados, rbd));
    Ok(library)
}

/// Returns the libraries, which are loaded once.
pub(super) fn library() -> Result<&'static Library, String> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    LIBRARY.get_or_init(|| load(RADOS, RBD)).as_ref().map_err(Clone::clone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_its_package() {
        let Err(why) = load("libnosuch.so.2", RBD) else { panic!("loaded what is not there") };
        assert!(why.starts_with("the store \"rbd\" needs libnosuch.so.2"), "{why}");
        assert!(why.ends_with("(Debian: apt-get install librados2)"), "{why}");
    }

    #[test]
    fn a_library_without_its_functions_is_too_old() {
        let Err(why) = load("libc.so.6", "libc.so.6") else { panic!("libc has no rados_create2") };
        assert!(why.starts_with("rados_create2 is missing"), "{why}");
    }
}
