//! AES-256-XTS (IEEE 1619) over blocks of 4 KiB. The tweak is the number of the block in its
//! volume. So a block that a snapshot shares with its volume, or with a volume made of it, reads
//! the same in all of them: they have the same key. Checksums are those of the encrypted bytes, and
//! can be checked without a key.
//!
//! This is an own implementation of the mode: the crate `xts-mode` (0.6) encrypts the units of 16
//! bytes one by one, so the processor works on one unit at a time; here it gets a whole block at
//! once.

use crate::local::BLOCK_BYTES;
use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes256, Block};
use std::fmt;
use zeroize::Zeroizing;

/// Bytes of a data key: 256 bits for the data, 256 for the tweaks.
pub const KEY_BYTES: usize = 64;
/// Units of 16 bytes in a block.
const UNITS: usize = BLOCK_BYTES / 16;

/// The key of a volume and of its snapshots. Erased when it is dropped, and never shown.
#[derive(Clone)]
pub struct DataKey(Zeroizing<[u8; KEY_BYTES]>);

impl DataKey {
    /// Creates a key of these bytes.
    #[must_use]
    pub fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Creates a new random key.
    ///
    /// # Errors
    /// When the operating system has no random bytes.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut key = Self::new([0; KEY_BYTES]);
        getrandom::fill(key.0.as_mut_slice())?;
        Ok(key)
    }

    /// Returns its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataKey(..)")
    }
}

/// Encrypts and decrypts the blocks of a volume.
#[derive(Clone)]
pub struct Cipher {
    data: Aes256,
    tweak: Aes256,
}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cipher(..)")
    }
}

impl Cipher {
    /// Creates the cipher of a key.
    #[must_use]
    pub fn new(key: &DataKey) -> Self {
        let (data, tweak) = key.bytes().split_at(KEY_BYTES / 2);
        let cipher = |half: &[u8]| {
            let mut key = Zeroizing::new([0; KEY_BYTES / 2]);
            key.copy_from_slice(half);
            Aes256::new(&Array(*key))
        };
        Self { data: cipher(data), tweak: cipher(tweak) }
    }

    /// Encrypts whole blocks in place; `first` is the number of the first one in the volume.
    pub fn encrypt(&self, first: u64, bytes: &mut [u8]) {
        self.each(first, bytes, |cipher, units| cipher.encrypt_blocks(units));
    }

    /// Decrypts whole blocks in place.
    pub fn decrypt(&self, first: u64, bytes: &mut [u8]) {
        self.each(first, bytes, |cipher, units| cipher.decrypt_blocks(units));
    }

    fn each(&self, first: u64, bytes: &mut [u8], step: impl Fn(&Aes256, &mut [Block])) {
        debug_assert_eq!(bytes.len() % BLOCK_BYTES, 0, "whole blocks");
        let mut tweaks = [0_u128; UNITS];
        for (number, block) in (first..).zip(bytes.chunks_exact_mut(BLOCK_BYTES)) {
            self.tweaks(number, &mut tweaks);
            let (units, _) = Array::slice_as_chunks_mut(block);
            mask(units, &tweaks);
            step(&self.data, units);
            mask(units, &tweaks);
        }
    }

    /// Computes the tweaks of a block's units: the encrypted number of the block, then for each
    /// unit the previous tweak times x.
    fn tweaks(&self, number: u64, tweaks: &mut [u128; UNITS]) {
        let mut unit: Block = Array(u128::from(number).to_le_bytes());
        self.tweak.encrypt_block(&mut unit);
        let mut tweak = u128::from_le_bytes(unit.0);
        for place in tweaks {
            *place = tweak;
            tweak = (tweak << 1) ^ ((tweak >> 127) * 0x87);
        }
    }
}

fn mask(units: &mut [Block], tweaks: &[u128; UNITS]) {
    for (unit, tweak) in units.iter_mut().zip(tweaks) {
        unit.0 = (u128::from_le_bytes(unit.0) ^ tweak).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len() / 2)
            .map(|position| u8::from_str_radix(&text[2 * position..2 * position + 2], 16).unwrap())
            .collect()
    }

    /// IEEE 1619-2007, annex B, vector 10: AES-256-XTS, data unit 0xff. Its 512 bytes are the
    /// first of a block: the units do not depend on each other.
    #[test]
    fn cipher_agrees_with_the_test_vector_of_ieee_1619() {
        let key = hex("2718281828459045235360287471352662497757247093699959574966967627\
                       3141592653589793238462643383279502884197169399375105820974944592");
        let mut bytes: Vec<u8> = (0..BLOCK_BYTES).map(|position| position as u8).collect();
        let cipher = Cipher::new(&DataKey::new(key.try_into().unwrap()));
        cipher.encrypt(0xff, &mut bytes);
        let expected = hex("1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b\
                            5d31e276f8fe4a8d66b317f9ac683f44680a86ac35adfc3345befecb4bb188fd");
        assert_eq!(bytes[..64], expected);
        cipher.decrypt(0xff, &mut bytes);
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == at as u8));
    }

    #[test]
    fn the_same_bytes_differ_by_place_and_by_key_and_no_key_is_shown() {
        let key = DataKey::random().unwrap();
        let other = DataKey::random().unwrap();
        let sealed = |key: &DataKey, first| {
            let mut bytes = vec![7; 2 * BLOCK_BYTES];
            Cipher::new(key).encrypt(first, &mut bytes);
            bytes
        };
        let bytes = sealed(&key, 5);
        assert_ne!(bytes[..BLOCK_BYTES], bytes[BLOCK_BYTES..]);
        assert_eq!(bytes[BLOCK_BYTES..], sealed(&key, 6)[..BLOCK_BYTES]);
        assert_ne!(bytes, sealed(&other, 5));
        assert_eq!(format!("{key:?} {:?}", Cipher::new(&key)), "DataKey(..) Cipher(..)");
    }

    proptest! {
        #[test]
        fn decryption_reverses_encryption(key: [u8; 32], first: u64, blocks in 1_usize..4) {
            let first = first >> 1;
            let mut whole = [0; KEY_BYTES];
            whole[..32].copy_from_slice(&key);
            whole[32..].copy_from_slice(&key.map(|byte| !byte));
            let cipher = Cipher::new(&DataKey::new(whole));
            let positions = 0..blocks * BLOCK_BYTES;
            let plain: Vec<u8> = positions.map(|position| (position / 7) as u8).collect();
            let mut bytes = plain.clone();
            cipher.encrypt(first, &mut bytes);
            prop_assert_ne!(&bytes, &plain);
            cipher.decrypt(first, &mut bytes);
            prop_assert_eq!(bytes, plain);
        }
    }
}
