//! The API of an Evenkeel server, by the typed client.

use super::form::{
    Attachment, Described, DescribedInstance, Measure, Modified, Request, modification, time_ms,
};
use super::meter::Meter;
use super::{Api, Measured};
use evenkeel_client::Client;
use evenkeel_client::model::{Host, VolumeDescription};
use evenkeel_client::output::Failure;
use evenkeel_client::volume_samples::{self, VolumeSample};
use evenkeel_client::volumes::{tag_parameters, tag_specification};
use evenkeel_core::units::MIB;
use evenkeel_wire::aws::xml::Element;
use std::collections::BTreeMap;

/// Parts of a whole balance.
const WHOLE_PPM: u64 = 1_000_000;

/// The API of an Evenkeel server.
pub struct Evenkeel {
    client: Client,
    /// Counters of the last minutes, by volume.
    meters: BTreeMap<String, Meter>,
}

impl Evenkeel {
    /// Creates it for the server of a client.
    #[must_use]
    pub const fn new(client: Client) -> Self {
        Self { client, meters: BTreeMap::new() }
    }
}

impl Api for Evenkeel {
    fn volumes(&mut self, filters: &[(String, Vec<String>)]) -> Result<Vec<Described>, Failure> {
        let parameters = filter_parameters(filters);
        self.client.list("DescribeVolumes", &borrowed(&parameters), |answer| {
            answer.items("volumeSet").iter().filter_map(described).collect()
        })
    }

    fn modifications(&mut self, volumes: &[&str]) -> Result<Vec<Modified>, Failure> {
        let named = volumes.iter().map(|volume| (*volume).to_owned()).collect();
        let parameters = filter_parameters(&[("volume-id".to_owned(), named)]);
        self.client.list("DescribeVolumesModifications", &borrowed(&parameters), |answer| {
            answer.items("volumeModificationSet").iter().filter_map(modified).collect()
        })
    }

    fn instance(&mut self, id: &str) -> Result<Option<DescribedInstance>, Failure> {
        let answer = self.client.call("DescribeInstances", &[("InstanceId.1", id)])?;
        let reservations = answer.items("reservationSet").iter();
        let found = reservations.flat_map(|item| item.items("instancesSet")).next();
        Ok(found.map(|item| DescribedInstance {
            instance_type: Host::read(item).instance_type,
            zone: item
                .child("placement")
                .and_then(|placement| placement.child_text("availabilityZone"))
                .unwrap_or_default()
                .to_owned(),
        }))
    }

    fn measures(&mut self, volumes: &[&Described], window_s: u32) -> Result<Measured, Failure> {
        let mut measured = Measured::default();
        let parameters = volumes.iter().zip(1..);
        let parameters: Vec<(String, String)> = parameters
            .map(|(volume, number)| (format!("VolumeId.{number}"), volume.id.clone()))
            .collect();
        if parameters.is_empty() {
            return Ok(measured);
        }
        let samples: Vec<(String, VolumeSample)> =
            self.client.list("DescribeVolumeMetrics", &borrowed(&parameters), |answer| {
                volume_samples::read(answer).collect()
            })?;
        self.meters.retain(|id, _| samples.iter().any(|(sampled, _)| sampled == id));
        for (id, sample) in samples {
            measured.unix_ms = measured.unix_ms.max(Some(sample.time_ms));
            let meter = self.meters.entry(id.clone()).or_default();
            let bytes = sample.read_bytes.saturating_add(sample.write_bytes);
            meter.add(sample.time_ms, bytes, sample.exceeded_ns);
            let measure = Measure {
                balance_ppm: balance_ppm(&sample),
                exceeded_s: meter.exceeded_s(window_s),
                used_mibps: meter.bytes_per_second().map(mibps),
            };
            measured.volumes.insert(id, measure);
        }
        Ok(measured)
    }

    fn call(&mut self, request: &Request) -> Result<(), Failure> {
        let parameters = parameters_of(request);
        self.client.call(request.action, &borrowed(&parameters)).map(drop)
    }
}

/// Returns MiB/s, rounded up.
fn mibps(bytes_per_second: u64) -> u32 {
    u32::try_from(bytes_per_second.div_ceil(MIB)).expect("invariant: no device is so fast")
}

fn balance_ppm(sample: &VolumeSample) -> Option<u32> {
    let limits = [sample.operations, sample.bytes];
    let credit = limits.into_iter().flatten().find_map(|limit| limit.credit)?;
    let ppm = u128::from(credit.balance.min(credit.capacity)) * u128::from(WHOLE_PPM)
        / u128::from(credit.capacity.max(1));
    Some(u32::try_from(ppm).expect("invariant: at most the whole"))
}

fn borrowed(parameters: &[(String, String)]) -> Vec<(&str, &str)> {
    parameters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

/// Returns `Filter.1.Name`, `Filter.1.Value.1`, ...
fn filter_parameters(filters: &[(String, Vec<String>)]) -> Vec<(String, String)> {
    let mut parameters = Vec::new();
    for ((name, values), number) in filters.iter().zip(1..) {
        parameters.push((format!("Filter.{number}.Name"), name.clone()));
        for (value, place) in values.iter().zip(1..) {
            parameters.push((format!("Filter.{number}.Value.{place}"), value.clone()));
        }
    }
    parameters
}

fn parameters_of(request: &Request) -> Vec<(String, String)> {
    let fields = request.fields.iter();
    let mut parameters: Vec<(String, String)> =
        fields.map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    parameters.extend(match request.action {
        "CreateVolume" => tag_specification("volume", &request.tags),
        _ => tag_parameters("Tag", &request.tags),
    });
    parameters
}

/// Returns a volume; `None` if this program does not know its type.
fn described(item: &Element) -> Option<Described> {
    let volume = VolumeDescription::read(item);
    let attachments = item.items("attachmentSet").iter();
    let text = |item: &Element, name: &str| item.child_text(name).unwrap_or_default().to_owned();
    Some(Described {
        spec: volume.spec().ok()?,
        id: volume.volume_id,
        state: volume.state,
        created_ms: time_ms(&volume.create_time).unwrap_or_default(),
        encrypted: volume.encrypted,
        kms_key: None,
        attachments: attachments
            .map(|item| Attachment {
                instance: text(item, "instanceId"),
                device: text(item, "device"),
                state: text(item, "status"),
                since_ms: time_ms(&text(item, "attachTime")).unwrap_or_default(),
            })
            .collect(),
        tags: volume.tags,
    })
}

fn modified(item: &Element) -> Option<Modified> {
    Some(Modified {
        volume: item.child_text("volumeId")?.to_owned(),
        state: modification(item.child_text("modificationState")?)?,
        started_ms: time_ms(item.child_text("startTime")?)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_the_tags_of_the_new_volume_or_of_the_resource() {
        let create = Request::of("CreateVolume", &[("Size", "8")], &[("a", "b")]);
        assert_eq!(
            borrowed(&parameters_of(&create)),
            [
                ("Size", "8"),
                ("TagSpecification.1.Tag.1.Key", "a"),
                ("TagSpecification.1.Tag.1.Value", "b"),
                ("TagSpecification.1.ResourceType", "volume"),
            ]
        );
        let tag = Request::of("CreateTags", &[("ResourceId.1", "vol-1")], &[("a", "b")]);
        let expected = [("ResourceId.1", "vol-1"), ("Tag.1.Key", "a"), ("Tag.1.Value", "b")];
        assert_eq!(borrowed(&parameters_of(&tag)), expected);
        let filters = [("volume-id".to_owned(), vec!["v".to_owned(), "w".to_owned()])];
        assert_eq!(
            borrowed(&filter_parameters(&filters)),
            [("Filter.1.Name", "volume-id"), ("Filter.1.Value.1", "v"), ("Filter.1.Value.2", "w"),]
        );
    }
}
