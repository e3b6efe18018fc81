//! Blocks of data that differ by volume and number, written to every seventh block of a volume.

use super::nbd::Client;
use super::server::Server;

/// Bytes of a block.
pub const BLOCK: usize = 4_096;

/// Returns the data of a block, which does not occur elsewhere by chance.
pub fn pattern(volume: u64, block: u64) -> Vec<u8> {
    let seed = (volume << 32 | block).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let word = |at: u64| seed.wrapping_mul(2 * at + 1).rotate_left(17).to_le_bytes();
    (0..BLOCK as u64 / 8).flat_map(word).collect()
}

/// Writes this number of blocks, to every seventh of the volume, and flushes.
pub fn fill(server: &Server, volume: &str, number: u64, blocks: u64) {
    let mut client = Client::open(server.nbd, volume).expect("attached");
    for block in 0..blocks {
        let data = pattern(number, block);
        client.write(block * 7 * BLOCK as u64, &data).expect("written");
    }
    client.flush().expect("flushed");
}

/// Reads one of these blocks; returns the error number if that fails.
pub fn read(client: &mut Client, block: u64) -> Result<Vec<u8>, Option<i32>> {
    client.read(block * 7 * BLOCK as u64, BLOCK as u32).map_err(|error| error.raw_os_error())
}
