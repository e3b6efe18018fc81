//! Encryption of a place: every object in it is encrypted and has a keyed checksum. Pure.
//!
//! A place has one data key, wrapped by a key file or a key command, in the object [`KEY_NAME`].
//! Each object has its own keys, derived from the data key and the object's name, so no object can
//! replace another one. An object is its bytes, filled up with zeros to whole blocks and encrypted
//! by AES-256-XTS, and a trailer: their length, and an HMAC with SHA-256 of length and encrypted
//! bytes. The HMAC checks an object that is read as a whole, such as the manifest; the manifest's
//! checksums check the units of packs.

use evenkeel_store::encryption::crypt::{Cipher, DataKey, KEY_BYTES};
use evenkeel_store::encryption::keys::Keys;
use evenkeel_wire::aws::sigv4::{hex, hmac};
use std::ops::Range;

/// The object with the wrapped key.
pub const KEY_NAME: &str = "evenkeel.key";
/// Maximum size of that object in bytes.
pub const KEY_OBJECT_BYTES_MAX: u64 = 4_096;
/// Beginning of that object.
const KEY_MAGIC: &str = "evenkeel export key 1\n";
/// Bytes of an encrypted block.
const BLOCK_BYTES: u64 = 4_096;
/// Bytes of a length.
const LENGTH_BYTES: usize = 8;
/// Bytes behind the encrypted ones.
pub const TRAILER_BYTES: u64 = 40;

/// The key of a place.
pub struct Seal {
    key: DataKey,
}

impl Seal {
    /// Creates a new key, and the object that stores it.
    ///
    /// # Errors
    /// The text is the reason.
    pub fn new(keys: &Keys) -> Result<(Self, Vec<u8>), String> {
        let key = DataKey::random().map_err(|error| error.to_string())?;
        let wrapped = keys.wrap(&key).map_err(|error| error.to_string())?;
        let object = format!("{KEY_MAGIC}{}\n", hex(&wrapped));
        Ok((Self { key }, object.into_bytes()))
    }

    /// Reads the key of an object.
    ///
    /// # Errors
    /// The text is the reason.
    pub fn read(keys: &Keys, object: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(object).ok().and_then(|text| text.strip_prefix(KEY_MAGIC));
        let wrapped = text.and_then(|digits| bytes_of(digits.trim_end()));
        let wrapped = wrapped.ok_or("it holds no key of this version")?;
        keys.unwrap(&wrapped).map(|key| Self { key }).map_err(|error| error.to_string())
    }

    /// Derives a key for one use of one object.
    fn derived(&self, purpose: &str, name: &str) -> [u8; 32] {
        hmac(self.key.bytes(), format!("{purpose}\0{name}").as_bytes())
    }

    fn cipher(&self, name: &str) -> Cipher {
        let mut key = [0; KEY_BYTES];
        key[..32].copy_from_slice(&self.derived("data", name));
        key[32..].copy_from_slice(&self.derived("tweak", name));
        Cipher::new(&DataKey::new(key))
    }

    fn checksum(&self, name: &str, checked: &[u8]) -> [u8; 32] {
        hmac(&self.derived("checksum", name), checked)
    }

    /// Encrypts an object. Returns its stored bytes.
    pub fn seal(&self, name: &str, mut bytes: Vec<u8>) -> Vec<u8> {
        let length = bytes.len() as u64;
        bytes.resize(length.next_multiple_of(BLOCK_BYTES) as usize, 0);
        self.cipher(name).encrypt(0, &mut bytes);
        bytes.extend(length.to_le_bytes());
        let checksum = self.checksum(name, &bytes);
        bytes.extend(checksum);
        bytes
    }

    /// Returns the length of the contents of an object of `stored` bytes, by its trailer.
    ///
    /// # Errors
    /// If the trailer does not belong to such an object.
    pub fn length(trailer: &[u8], stored: u64) -> Result<u64, String> {
        let length = trailer.first_chunk::<LENGTH_BYTES>().map(|bytes| u64::from_le_bytes(*bytes));
        let blocks = stored.checked_sub(TRAILER_BYTES);
        let fits = |length: &u64| length.checked_next_multiple_of(BLOCK_BYTES) == blocks;
        length.filter(fits).ok_or_else(|| "it is not encrypted, or damaged".to_owned())
    }

    /// Returns the range of stored bytes that has a range of an object.
    pub fn stored(range: &Range<u64>) -> Range<u64> {
        range.start / BLOCK_BYTES * BLOCK_BYTES..range.end.next_multiple_of(BLOCK_BYTES)
    }

    /// Decrypts a range of an object from the bytes of [`Self::stored`].
    pub fn open(&self, name: &str, range: &Range<u64>, mut stored: Vec<u8>) -> Vec<u8> {
        let first = range.start / BLOCK_BYTES;
        stored.truncate(stored.len() / BLOCK_BYTES as usize * BLOCK_BYTES as usize);
        self.cipher(name).decrypt(first, &mut stored);
        stored.drain(..stored.len().min((range.start - first * BLOCK_BYTES) as usize));
        stored.truncate((range.end - range.start) as usize);
        stored
    }

    /// Decrypts an object and checks its checksum.
    ///
    /// # Errors
    /// If the object was not written under this name with this key.
    pub fn open_whole(&self, name: &str, mut stored: Vec<u8>) -> Result<Vec<u8>, String> {
        let changed =
            || "its keyed checksum is another one: it is damaged, or was changed".to_owned();
        let bytes = stored.len() as u64;
        let offset = bytes.checked_sub(TRAILER_BYTES).ok_or_else(changed)? as usize;
        let length = Self::length(&stored[offset..], bytes)?;
        let checksum = stored.split_off(offset + LENGTH_BYTES);
        if !is_same(&checksum, &self.checksum(name, &stored)) {
            return Err(changed());
        }
        stored.truncate(offset);
        Ok(self.open(name, &(0..length), stored))
    }
}

/// Compares two checksums in constant time.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |bits, (a, b)| bits | (a ^ b)) == 0
}

/// The bytes of hexadecimal digits.
fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |pair: &[u8; 2]| Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8);
    rest.is_empty().then(|| pairs.iter().map(byte).collect::<Option<Vec<u8>>>())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        Keys::Command("cat".to_owned())
    }

    #[test]
    fn an_object_opens_with_its_key_and_name_only() {
        let (seal, object) = Seal::new(&keys()).unwrap();
        let again = Seal::read(&keys(), &object).unwrap();
        let (other, _) = Seal::new(&keys()).unwrap();
        for length in [0, 1, 4_095, 4_096, 10_000] {
            let plain: Vec<u8> = (0..length).map(|number| (number / 5) as u8).collect();
            let stored = seal.seal("a/b", plain.clone());
            assert_eq!(Seal::length(&stored[stored.len() - 40..], stored.len() as u64), Ok(length));
            assert_eq!(again.open_whole("a/b", stored.clone()).unwrap(), plain);
            assert!(again.open_whole("a/c", stored.clone()).is_err());
            assert!(other.open_whole("a/b", stored.clone()).is_err());
            assert!(length < 16 || !stored.windows(16).any(|part| plain.starts_with(part)));
        }
    }

    #[test]
    fn every_change_of_an_object_is_found() {
        let (seal, _) = Seal::new(&keys()).unwrap();
        let stored = seal.seal("a", vec![7; 5_000]);
        for at in (0..stored.len()).step_by(97).chain(stored.len() - 40..stored.len()) {
            let mut changed = stored.clone();
            changed[at] ^= 1;
            assert!(seal.open_whole("a", changed).is_err(), "byte {at}");
        }
        for length in [0, 39, 40, 4_096, stored.len() - 1] {
            assert!(seal.open_whole("a", stored[..length].to_vec()).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn a_range_is_read_from_the_blocks_that_hold_it() {
        let (seal, _) = Seal::new(&keys()).unwrap();
        let plain: Vec<u8> = (0..20_000_u32).map(|number| (number / 3) as u8).collect();
        let stored = seal.seal("a", plain.clone());
        for range in [0..1, 4_096..8_192, 4_095..8_193, 19_990..20_000, 5..5] {
            let of = Seal::stored(&range);
            let part = stored[of.start as usize..of.end as usize].to_vec();
            let expected = &plain[range.start as usize..range.end as usize];
            assert_eq!(seal.open("a", &range, part), expected, "{range:?}");
        }
    }

    #[test]
    fn a_key_object_that_is_none_is_refused() {
        for object in
            [&b""[..], b"evenkeel export key 1\n", b"evenkeel export key 2\n00\n", b"\xff"]
        {
            assert!(Seal::read(&keys(), object).is_err());
        }
    }
}
