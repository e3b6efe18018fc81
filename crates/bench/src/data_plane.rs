//! A data plane in this process, without a control plane, for limits that no volume type has:
//! volumes in memory with any pacing, and the device, instances and volumes of a scenario with
//! exactly its limits and balances.
//!
//! Its stores begin empty, and end with it. An engine that does not start or refuses a command is
//! an error.

use evenkeel_core::convert::saturating;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::live::{Counters, Host};
use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::qos::admission::Reserved;
use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_core::units::ByteCount;
use evenkeel_engine::priority::Priority;
use evenkeel_engine::{Engine, EngineConfig, IoMode, UnixAccess};
use evenkeel_lab::nbd_uri::Export;
use evenkeel_lab::{LabError, environment};
use evenkeel_sim::scenario::setup::{DeviceSetup, Setup};
use evenkeel_sim::world::product::instance_pacing;
use evenkeel_store::faulty::FaultyPool;
use evenkeel_store::faulty::setup::Setup as FaultySetup;
use evenkeel_store::memory::MemoryPool;
use evenkeel_wire::agent::{Attachment, Command, HostAddress, HostState, Reply, VolumeState};

/// An instance without limits, for volumes that are attached to none.
const ELSEWHERE: u32 = u32::MAX;

/// Starts a data plane on an empty store in memory; the caller adds its addresses.
#[must_use]
pub fn in_memory(io: IoMode) -> EngineConfig {
    EngineConfig {
        cores: saturating::<_, u16>(environment::processors()),
        io,
        // Its competitors in a comparison run with this priority.
        priority: Priority::None,
        tcp: Vec::new(),
        unix: None,
        unix_access: UnixAccess::default(),
        pool: Arc::new(MemoryPool::new()),
    }
}

/// Starts a data plane.
///
/// # Errors
/// If an address is taken, or the kernel refuses a resource.
pub fn start(config: EngineConfig) -> Result<Engine, LabError> {
    Engine::start(config).map_err(LabError::failed)
}

/// Creates a volume for clients on this machine, or changes the pacing of such a volume.
///
/// # Errors
/// If the data plane refuses it.
pub fn apply(
    engine: &Engine,
    id: VolumeId,
    size: ByteCount,
    pacing: Pacing,
) -> Result<(), LabError> {
    // Hosts have no limits here, so any host stands for this machine.
    let here = Attachment { host: InstanceId::from_bits(0), address: HostAddress::Local };
    let balances = Balances::default();
    let reserved = Reserved::NOTHING;
    let unleased = Balances::default();
    let attachments = vec![here];
    let is_encrypted = false;
    let state =
        VolumeState { id, size, pacing, balances, unleased, reserved, attachments, is_encrypted };
    call(engine, Command::Create(state)).map(drop)
}

/// Starts one data plane after the other, each for a case. Dropping it ends the last one.
pub struct World {
    socket: PathBuf,
    io: IoMode,
    engine: Option<Engine>,
    volumes: Vec<VolumeId>,
    device: Option<FaultySetup>,
}

impl World {
    /// Creates a world whose data planes listen on a socket in this folder.
    #[must_use]
    pub fn new(folder: &Path, io: IoMode) -> Self {
        let socket = folder.join("nbd.sock");
        Self { socket, io, engine: None, volumes: Vec::new(), device: None }
    }

    fn close(&mut self) {
        if let Some(engine) = self.engine.take() {
            engine.shutdown();
        }
        self.volumes.clear();
    }

    fn make(&mut self, setup: &Setup) -> Result<Vec<Export>, LabError> {
        self.close();
        // The socket of an earlier data plane would look like a server that runs.
        let _ = std::fs::remove_file(&self.socket);
        self.device = faulty(&setup.device);
        let mut config = EngineConfig { unix: Some(self.socket.clone()), ..in_memory(self.io) };
        if let Some(device) = &self.device {
            config.pool = Arc::new(FaultyPool::new(config.pool, device));
        }
        let engine = start(config)?;
        apply_world(&engine, setup)?;
        self.volumes = (1..).zip(&setup.volumes).map(|(id, _)| VolumeId::from_bits(id)).collect();
        self.engine = Some(engine);
        let export = |id: &VolumeId| Export { socket: self.socket.clone(), name: id.to_string() };
        Ok(self.volumes.iter().map(export).collect())
    }
}

/// Returns the set-up of a store that behaves like this device; `None` if the device has no
/// channels, as a plain store is enough then.
fn faulty(device: &DeviceSetup) -> Option<FaultySetup> {
    let setup = FaultySetup::new(device.channels?, device.read);
    let DeviceSetup { write, near_ns, noise_ppm, cache, .. } = *device;
    Some(FaultySetup { write, near_ns, noise_ppm, cache, ..setup })
}

/// Creates these instances and volumes, or changes those that exist.
fn apply_world(engine: &Engine, setup: &Setup) -> Result<(), LabError> {
    for (number, instance) in (0_u32..).zip(&setup.instances) {
        let pacing = instance_pacing(instance).map_err(LabError::failed)?;
        let id = instance_id(number);
        let balances = Balances::default();
        call(
            engine,
            Command::ApplyHost(HostState { id, pacing, balances, unleased: Balances::default() }),
        )?;
    }
    for (number, volume) in (1..).zip(&setup.volumes) {
        let host = instance_id(volume.instance.unwrap_or(ELSEWHERE));
        let state = VolumeState {
            id: VolumeId::from_bits(number),
            size: ByteCount(volume.size_bytes),
            pacing: volume.pacing,
            balances: volume.balances,
            unleased: Balances::default(),
            reserved: Reserved::NOTHING,
            attachments: vec![Attachment { host, address: HostAddress::Local }],
            is_encrypted: false,
        };
        call(engine, Command::Create(state))?;
    }
    Ok(())
}

fn instance_id(number: u32) -> InstanceId {
    InstanceId::from_bits(number.into())
}

fn call(engine: &Engine, command: Command) -> Result<Reply, LabError> {
    match engine.agent().call(command) {
        Reply::Failed(failure) => Err(LabError::failed(failure.message)),
        reply => Ok(reply),
    }
}

/// Converts an error of a server's start, which leaves its case without a verdict.
fn no_verdict(error: LabError) -> LabError {
    LabError::Unjudgeable(error.to_string())
}

impl Host for World {
    fn open(&mut self, setup: &Setup) -> Result<Vec<Export>, LabError> {
        self.make(setup).map_err(no_verdict)
    }

    fn limit(&mut self, setup: &Setup) -> Result<(), LabError> {
        let engine = self.engine.as_ref().ok_or_else(|| {
            LabError::Unjudgeable("no world is open whose limits could change".to_owned())
        })?;
        apply_world(engine, setup).map_err(no_verdict)?;
        for (id, volume) in self.volumes.iter().zip(&setup.volumes) {
            // Balances of a volume that exists belong to its old limits.
            let full = Balances::full(&volume.pacing);
            let balances = Balances {
                operations: volume.balances.operations.or(full.operations),
                bytes: volume.balances.bytes.or(full.bytes),
            };
            call(engine, Command::SetBalances(*id, balances)).map_err(no_verdict)?;
        }
        Ok(())
    }

    fn storage(&self) -> String {
        match &self.device {
            None => "memory".to_owned(),
            Some(device) => format!("memory behind a device of {device}"),
        }
    }

    fn counters(&mut self) -> Result<Vec<Counters>, LabError> {
        let unknown = || LabError::Unjudgeable("the server reports no counters".to_owned());
        let engine = self.engine.as_ref().ok_or_else(unknown)?;
        let Ok(Reply::Report(report)) = call(engine, Command::Report) else {
            return Err(unknown());
        };
        let of = |id: &VolumeId| {
            let volume = report.volumes.iter().find(|volume| volume.id == *id);
            let counters =
                volume.map(|volume| Counters { ios: volume.operations, flushes: volume.flushes });
            counters.ok_or_else(unknown)
        };
        self.volumes.iter().map(of).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.close();
    }
}
