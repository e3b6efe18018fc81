//! Access to the API of a server that a measurement has started.

use crate::api::Client;
use crate::api::capacity::Capacity;
use crate::cli::{VolumeCreate, Wait};
use crate::cmd::{host, volume};
use crate::output::Failure;
use evenkeel_core::volume::VolumeRequest;
use evenkeel_lab::LabError;
use evenkeel_lab::bench::server_process::{ControlApi, Sold};
use evenkeel_wire::aws::xml::Element;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// Maximum wait until one volume is created and attached.
const WAIT: Wait = Wait { wait: true, timeout: Duration::from_secs(30) };

/// Creates a client of the server at an address, with the keys in its data folder.
pub fn connect(api: SocketAddr, data_dir: &Path) -> Result<Box<dyn ControlApi>, LabError> {
    let client = Client::of_server(api, "local-1", data_dir).map_err(failed)?;
    Ok(Box::new(client))
}

impl ControlApi for Client {
    fn create(&self, request: &VolumeRequest, attach: bool) -> Result<String, LabError> {
        let VolumeRequest { volume_type, size_gib, iops, throughput_mibps, multi_attach } =
            *request;
        let create = VolumeCreate {
            volume_type,
            size: Some(size_gib),
            snapshot: None,
            zone: None,
            iops,
            throughput: throughput_mibps,
            multi_attach,
            encrypted: false,
            tags: Vec::new(),
            attach,
            wait: WAIT,
        };
        volume::create(self, &create).map(|volume| volume.volume_id).map_err(failed)
    }

    fn register(&self, instance_type: &str) -> Result<String, LabError> {
        host::register(self, instance_type).map(|host| host.host_id).map_err(failed)
    }

    fn attach(&self, volume: &str, host: &str) -> Result<(), LabError> {
        volume::attach(self, volume, Some(host.to_owned()), None, &WAIT).map_err(failed)
    }

    fn ask(&self, action: &str, parameters: &[(&str, &str)]) -> Result<Element, LabError> {
        self.call(action, parameters).map_err(failed)
    }

    fn sold(&self) -> Result<Vec<Sold>, LabError> {
        let sold = Capacity::get(self).map_err(failed)?.sold.into_iter();
        let sold = sold.map(|of| Sold { unit: of.unit, sold: of.sold, for_sale: of.for_sale });
        Ok(sold.collect())
    }
}

fn failed(failure: Failure) -> LabError {
    LabError::Api(Box::new(failure))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Exit;

    #[test]
    fn a_refusal_keeps_its_exit_code_and_its_hint() {
        let failure = Failure::new("no capacity").exit(Exit::Refused).hint("delete a volume");
        assert_eq!(Failure::from(failed(failure.clone())), failure);
    }
}
