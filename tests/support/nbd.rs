//! A minimal client for what well-behaved clients cannot do: wrong requests, silence, replies that
//! it does not read. It follows the text of the NBD protocol, not our server.

use super::PATIENCE;
use std::io::{Read, Result, Write};
use std::net::{SocketAddr, TcpStream};

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISCONNECT: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;

pub const OPTION_ABORT: u32 = 2;
pub const OPTION_GO: u32 = 7;

pub const REPLY_ACK: u32 = 1;
pub const REPLY_INFO: u32 = 3;
pub const REPLY_POLICY: u32 = (1 << 31) + 2;
pub const REPLY_UNKNOWN: u32 = (1 << 31) + 6;

/// A connection with simple replies.
pub struct Client {
    pub stream: TcpStream,
}

/// The server's answer to one option.
#[derive(Debug)]
pub struct OptionReply {
    pub kind: u32,
    pub data: Vec<u8>,
}

impl Client {
    /// Connects and exchanges greetings, without selecting an export.
    pub fn connect(address: SocketAddr) -> Result<Self> {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        // Fixed newstyle, no zeroes.
        stream.write_all(&3_u32.to_be_bytes())?;
        Ok(Self { stream })
    }

    /// Returns a connection that is ready for I/O on a volume.
    pub fn open(address: SocketAddr, volume: &str) -> Result<Self> {
        let mut client = Self::connect(address)?;
        client.send_option(OPTION_GO, &go(volume))?;
        loop {
            match client.option_reply()? {
                OptionReply { kind: REPLY_ACK, .. } => return Ok(client),
                OptionReply { kind: REPLY_INFO, .. } => {}
                OptionReply { kind, data } => {
                    let message = String::from_utf8_lossy(&data);
                    return Err(std::io::Error::other(format!("{kind:#x}: {message}")));
                }
            }
        }
    }

    pub fn send_option(&mut self, option: u32, data: &[u8]) -> Result<()> {
        let length = u32::try_from(data.len()).expect("a short option");
        self.send_option_head(option, length)?;
        self.stream.write_all(data)
    }

    /// Announces an option of `length` bytes.
    pub fn send_option_head(&mut self, option: u32, length: u32) -> Result<()> {
        let mut head = b"IHAVEOPT".to_vec();
        head.extend_from_slice(&option.to_be_bytes());
        head.extend_from_slice(&length.to_be_bytes());
        self.stream.write_all(&head)
    }

    pub fn option_reply(&mut self) -> Result<OptionReply> {
        let head: [u8; 20] = self.bytes()?;
        assert_eq!(head[..8], 0x0003_e889_0455_65a9_u64.to_be_bytes());
        let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        let mut data = vec![0; usize::try_from(number(16)).unwrap()];
        self.stream.read_exact(&mut data)?;
        Ok(OptionReply { kind: number(12), data })
    }

    pub fn send(&mut self, command: u16, cookie: u64, offset: u64, length: u32) -> Result<()> {
        self.stream.write_all(&request(command, cookie, offset, length))
    }

    /// Returns the error and the cookie of the next reply; the caller reads the payload of a read.
    pub fn reply(&mut self) -> Result<(u32, u64)> {
        let head: [u8; 16] = self.bytes()?;
        assert_eq!(head[..4], 0x6744_6698_u32.to_be_bytes());
        let error = u32::from_be_bytes(head[4..8].try_into().unwrap());
        Ok((error, u64::from_be_bytes(head[8..].try_into().unwrap())))
    }

    pub fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>> {
        let mut data = vec![0; usize::try_from(length).unwrap()];
        self.read_into(offset, &mut data)?;
        Ok(data)
    }

    /// Fills a buffer, which may be used for many reads: a new one of this size costs more than the
    /// read itself.
    pub fn read_into(&mut self, offset: u64, data: &mut [u8]) -> Result<()> {
        self.send(READ, offset, offset, u32::try_from(data.len()).unwrap())?;
        self.expect_success(offset)?;
        self.stream.read_exact(data)
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.send(WRITE, offset, offset, u32::try_from(data.len()).unwrap())?;
        self.stream.write_all(data)?;
        self.expect_success(offset)
    }

    pub fn flush(&mut self) -> Result<()> {
        self.send(FLUSH, u64::MAX, 0, 0)?;
        self.expect_success(u64::MAX)
    }

    /// Returns whether the server ends the connection, whatever it sends before.
    pub fn is_closed_by_server(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }

    fn expect_success(&mut self, expected: u64) -> Result<()> {
        let (error, cookie) = self.reply()?;
        assert_eq!(cookie, expected, "the reply to another request");
        if error == 0 {
            Ok(())
        } else {
            Err(std::io::Error::from_raw_os_error(error.cast_signed()))
        }
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// Returns the data of `NBD_OPT_GO`, without information requests.
pub fn go(volume: &str) -> Vec<u8> {
    let mut data = u32::try_from(volume.len()).unwrap().to_be_bytes().to_vec();
    data.extend_from_slice(volume.as_bytes());
    data.extend_from_slice(&[0, 0]);
    data
}

/// Returns a request in its wire format, without flags and payload.
pub fn request(command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend_from_slice(&[0, 0]);
    bytes.extend_from_slice(&command.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes
}
