//! A data plane of our own on which a scenario's volumes are made: with exactly its limits, its
//! balances and its instances, and its device below.

use super::failed;
use crate::cli::Io;
use crate::message::Failure;
use crate::server;
use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::qos::admission::Reserved;
use evenkeel_core::qos::pacing::Balances;
use evenkeel_core::units::ByteCount;
use evenkeel_engine::{Engine, EngineConfig, UnixAccess};
use evenkeel_lab::LabError;
use evenkeel_lab::bench::live::{Counters, Export, Host};
use evenkeel_sim::scenario::setup::{DeviceSetup, Setup};
use evenkeel_sim::world::product::instance_pacing;
use evenkeel_store::Pool;
use evenkeel_store::faulty::FaultyPool;
use evenkeel_store::faulty::setup::Setup as FaultySetup;
use evenkeel_store::memory::MemoryPool;
use evenkeel_wire::agent::{Attachment, Command, HostAddress, HostState, Reply, VolumeState};
use std::path::PathBuf;
use std::sync::Arc;

/// An instance without limits, for volumes that are attached to none.
const ELSEWHERE: u32 = u32::MAX;

/// Makes one data plane after the other; dropping it ends the last.
pub struct World {
    socket: PathBuf,
    io: Io,
    engine: Option<Engine>,
    volumes: Vec<VolumeId>,
    device: Option<FaultySetup>,
}

impl World {
    /// Its data planes listen on a socket in this folder.
    pub fn new(folder: PathBuf, io: Io) -> Self {
        let socket = folder.join("nbd.sock");
        Self { socket, io, engine: None, volumes: Vec::new(), device: None }
    }

    fn close(&mut self) {
        if let Some(engine) = self.engine.take() {
            engine.shutdown();
        }
        self.volumes.clear();
    }

    fn make(&mut self, setup: &Setup) -> Result<Vec<Export>, Failure> {
        self.close();
        // What the last one left would look like a server that runs.
        let _ = std::fs::remove_file(&self.socket);
        self.device = faulty(&setup.device);
        let memory: Arc<dyn Pool> = Arc::new(MemoryPool::new());
        let pool = match &self.device {
            Some(device) => Arc::new(FaultyPool::new(memory, device)),
            None => memory,
        };
        let engine = Engine::start(EngineConfig {
            cores: server::cores(),
            io: self.io.into(),
            tcp: Vec::new(),
            unix: Some(self.socket.clone()),
            unix_access: UnixAccess::default(),
            pool,
        })
        .map_err(failed)?;
        apply(&engine, setup)?;
        self.volumes = (1..).zip(&setup.volumes).map(|(id, _)| VolumeId::from_bits(id)).collect();
        self.engine = Some(engine);
        let export = |id: &VolumeId| Export { socket: self.socket.clone(), name: id.to_string() };
        Ok(self.volumes.iter().map(export).collect())
    }
}

/// The same device under a store of real time; `None` if it has no channels, and so nothing that a
/// plain store has not.
fn faulty(device: &DeviceSetup) -> Option<FaultySetup> {
    let setup = FaultySetup::new(device.channels?, device.read);
    let DeviceSetup { write, near_ns, noise_ppm, cache, .. } = *device;
    Some(FaultySetup { write, near_ns, noise_ppm, cache, ..setup })
}

/// Makes instances and volumes so, whether they are there or not.
fn apply(engine: &Engine, setup: &Setup) -> Result<(), Failure> {
    for (number, instance) in (0_u32..).zip(&setup.instances) {
        let pacing = instance_pacing(instance).map_err(failed)?;
        let (id, balances) = (instance_id(number), Balances::default());
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
        };
        call(engine, Command::Create(state))?;
    }
    Ok(())
}

fn instance_id(number: u32) -> InstanceId {
    InstanceId::from_bits(number.into())
}

fn call(engine: &Engine, command: Command) -> Result<Reply, Failure> {
    match engine.agent().call(command) {
        Reply::Failed(failure) => Err(Failure::new(failure.message)),
        reply => Ok(reply),
    }
}

impl Host for World {
    fn open(&mut self, setup: &Setup) -> Result<Vec<Export>, LabError> {
        self.make(setup).map_err(|failure| LabError::Unjudgeable(failure.message))
    }

    fn limit(&mut self, setup: &Setup) -> Result<(), LabError> {
        let engine = self.engine.as_ref().ok_or_else(|| {
            LabError::Unjudgeable("no world is open whose limits could change".to_owned())
        })?;
        let failed = |failure: Failure| LabError::Unjudgeable(failure.message);
        apply(engine, setup).map_err(failed)?;
        for (id, volume) in self.volumes.iter().zip(&setup.volumes) {
            // Those of before are of the limits of before.
            let full = Balances::full(&volume.pacing);
            let balances = Balances {
                operations: volume.balances.operations.or(full.operations),
                bytes: volume.balances.bytes.or(full.bytes),
            };
            call(engine, Command::SetBalances(*id, balances)).map_err(failed)?;
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
        let untold = || LabError::Unjudgeable("the server does not tell its counters".to_owned());
        let engine = self.engine.as_ref().ok_or_else(untold)?;
        let Ok(Reply::Report(report)) = call(engine, Command::Report) else {
            return Err(untold());
        };
        let of = |id: &VolumeId| {
            let volume = report.volumes.iter().find(|volume| volume.id == *id);
            let counters = volume.map(|of| Counters { ios: of.operations, flushes: of.flushes });
            counters.ok_or_else(untold)
        };
        self.volumes.iter().map(of).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.close();
    }
}
