//! CopyVolumes: creates a volume with the present content of another. Returns, with a volume that
//! may still be `creating`, once the snapshot with which the copy begins survives a crash.

use evenkeel_core::volume::VolumeRequest;
use evenkeel_wire::aws::xml::Element;

use super::create_volume::spare;
use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::{Begins, Command};
use crate::plane::PlaneError;
use crate::random;

pub const ACTION: Action = Action { name: "CopyVolumes", mutates: true, run };

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let settings = &call.plane.settings;
    let args = &mut call.args;
    let source = args.volume_id("SourceVolumeId")?;
    let volume_type = args.volume_type("VolumeType")?.unwrap_or(settings.default_type());
    let size_gib = args.number("Size")?;
    let iops = args.number("Iops")?;
    let throughput_mibps = args.number("Throughput")?;
    let multi_attach = args.boolean("MultiAttachEnabled")?.unwrap_or(false);
    let is_encrypted = args.encryption(settings)?;
    let tags = args.tag_specifications("volume")?;
    let token = args.client_token()?.filter(|token| !token.is_empty());
    args.done()?;
    // A missing volume is refused below, unless the client token is known: the source may have been
    // deleted since.
    let of_source = call.plane.model().volume(source).ok().cloned();
    let size_gib = size_gib.or(of_source.as_ref().map(|it| it.spec.size_gib)).unwrap_or(1);
    // As on EC2, a copy is in the zone of its source.
    let zone = of_source.map_or_else(|| settings.zone().to_owned(), |it| it.zone);
    let request = VolumeRequest { volume_type, size_gib, iops, throughput_mibps, multi_attach };
    let token = token.map(|token| (token, std::mem::take(&mut call.fingerprint)));
    let id = random::volume_id().map_err(PlaneError::from)?;
    let spares = [spare()?, spare()?];
    let source = Some(source);
    let begins = Begins { source, is_encrypted, spares, ..Begins::default() };
    let outcome =
        call.execute(&Command::CreateVolume { id, request, begins, zone, tags, token })?;
    // If its snapshot has failed, the copy is removed already; it was `creating`.
    let volume = outcome.made().ok_or_else(|| ApiError::internal("the copy is gone"))?;
    let item = Element::list("item", view::made(view::volume(settings, &volume)));
    Ok(vec![Element::list("volumeSet", [item])])
}
