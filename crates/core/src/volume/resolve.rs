//! CreateVolume and ModifyVolume: from a request to a valid volume, or the reason for a refusal.

use super::rules::{
    IopsRule, LimitErrors, ModifyRules, MultiAttach, Rules, ThroughputRule, TypeRules,
};
use super::{FrozenProperty, InvalidSpec, VolumeChange, VolumeRequest, VolumeSpec, VolumeType};

impl VolumeSpec {
    /// Returns the request that resolves to this volume: a baseline is shown, but cannot be
    /// requested.
    #[must_use]
    pub fn request(&self) -> VolumeRequest {
        let provisioned =
            matches!(self.volume_type, VolumeType::Gp3 | VolumeType::Io1 | VolumeType::Io2);
        VolumeRequest {
            volume_type: self.volume_type,
            size_gib: self.size_gib,
            iops: self.iops.filter(|_| provisioned),
            throughput_mibps: self.throughput_mibps,
            multi_attach: self.multi_attach,
        }
    }
}

impl Rules {
    /// Returns the volume of a CreateVolume request, with defaults filled in.
    ///
    /// Parameters that the type does not have are refused before any number is checked, then size,
    /// IOPS, their ratio, throughput and its ratio in this order: clients probe limits with absurd
    /// numbers and read the first one from the text.
    pub fn resolve(&self, request: &VolumeRequest) -> Result<VolumeSpec, InvalidSpec> {
        let volume_type = request.volume_type;
        let rules = self.of(volume_type).ok_or(InvalidSpec::TypeNotOffered { volume_type })?;
        check_belonging(rules, request)?;
        check_size(rules, request.size_gib)?;
        let iops = resolve_iops(rules, request)?;
        let throughput_mibps = resolve_throughput(rules, request, iops)?;
        Ok(VolumeSpec {
            volume_type,
            size_gib: request.size_gib,
            iops,
            throughput_mibps,
            multi_attach: request.multi_attach,
        })
    }

    /// Returns the volume that `current` becomes by a ModifyVolume request.
    ///
    /// Does not check when a modification is allowed ([`Rules::modify_rules`]), or attachments
    /// (Multi-Attach cannot be switched while attached): both depend on more than the volume.
    pub fn modify(
        &self,
        current: &VolumeSpec,
        change: &VolumeChange,
    ) -> Result<VolumeSpec, InvalidSpec> {
        let modify =
            self.modify_rules().ok_or(InvalidSpec::ModifyUnavailable { date: self.date() })?;
        if *change == VolumeChange::default() {
            return Err(InvalidSpec::NothingToModify);
        }
        let volume_type = change.volume_type.unwrap_or(current.volume_type);
        let rules = self.of(volume_type).ok_or(InvalidSpec::TypeNotOffered { volume_type })?;
        let type_changes = volume_type != current.volume_type;
        let standard = [volume_type, current.volume_type].contains(&VolumeType::Standard);
        if type_changes && standard && !modify.standard_convertible {
            return Err(InvalidSpec::StandardNotConvertible);
        }
        let target = target(rules, modify, current, change);
        if target.size_gib < current.size_gib {
            return Err(InvalidSpec::SizeShrinks);
        }
        self.check_multi_attach(rules, current, &target)?;
        self.resolve(&target)
    }

    fn check_multi_attach(
        &self,
        rules: &TypeRules,
        current: &VolumeSpec,
        target: &VolumeRequest,
    ) -> Result<(), InvalidSpec> {
        let volume_type = current.volume_type;
        if current.multi_attach {
            let frozen = |property| Err(InvalidSpec::FrozenByMultiAttach { volume_type, property });
            if target.volume_type != volume_type {
                return frozen(FrozenProperty::Type);
            }
            if rules.multi_attach == MultiAttach::Fixed {
                if target.size_gib != current.size_gib {
                    return frozen(FrozenProperty::Size);
                }
                if target.iops != current.iops {
                    return frozen(FrozenProperty::Iops);
                }
            }
        }
        if target.multi_attach != current.multi_attach && rules.multi_attach == MultiAttach::Fixed {
            return Err(InvalidSpec::MultiAttachFixed { volume_type: target.volume_type });
        }
        Ok(())
    }
}

/// Returns the request of a modification, with the properties that it does not name taken from the
/// volume or the defaults.
fn target(
    rules: &TypeRules,
    modify: &ModifyRules,
    current: &VolumeSpec,
    change: &VolumeChange,
) -> VolumeRequest {
    let same_type = rules.volume_type == current.volume_type;
    let iops_unnamed = match rules.iops {
        IopsRule::Provisioned { .. } if same_type => current.iops,
        IopsRule::Provisioned { .. } => Some(modify.iops_on_type_change),
        _ => None,
    };
    // A change of the type keeps the new type's default, which `resolve` fills in.
    let throughput_unnamed = current.throughput_mibps.filter(|_| same_type);
    VolumeRequest {
        volume_type: rules.volume_type,
        size_gib: change.size_gib.unwrap_or(current.size_gib),
        iops: change.iops.or(iops_unnamed),
        throughput_mibps: change.throughput_mibps.or(throughput_unnamed),
        multi_attach: change.multi_attach.unwrap_or(current.multi_attach),
    }
}

/// Refuses parameters that the type does not have, and requires those that it needs.
fn check_belonging(rules: &TypeRules, request: &VolumeRequest) -> Result<(), InvalidSpec> {
    let volume_type = rules.volume_type;
    match (rules.iops, request.iops) {
        (IopsRule::Provisioned { default: None, .. }, None) => {
            return Err(InvalidSpec::IopsMissing { volume_type });
        }
        (IopsRule::Provisioned { .. }, _) | (_, None) => {}
        (_, Some(_)) => return Err(InvalidSpec::IopsNotSupported { volume_type }),
    }
    let sells_throughput = matches!(rules.throughput, ThroughputRule::Provisioned { .. });
    if request.throughput_mibps.is_some() && !sells_throughput {
        return Err(InvalidSpec::ThroughputNotSupported { volume_type });
    }
    if request.multi_attach && rules.multi_attach == MultiAttach::No {
        return Err(InvalidSpec::MultiAttachNotSupported { volume_type });
    }
    Ok(())
}

fn check_size(rules: &TypeRules, size_gib: u32) -> Result<(), InvalidSpec> {
    let volume_type = rules.volume_type;
    if size_gib < rules.size_gib_min {
        return Err(InvalidSpec::SizeTooSmall { volume_type, size_gib, min: rules.size_gib_min });
    }
    if size_gib > rules.size_gib_max {
        let separate = InvalidSpec::SizeTooLarge { volume_type, size_gib, max: rules.size_gib_max };
        return Err(above(rules, separate));
    }
    Ok(())
}

/// Returns the IOPS as DescribeVolumes shows them.
fn resolve_iops(rules: &TypeRules, request: &VolumeRequest) -> Result<Option<u32>, InvalidSpec> {
    let size_gib = request.size_gib;
    let IopsRule::Provisioned { min, max, default, per_gib, any_size } = rules.iops else {
        return Ok(rules.iops.baseline(size_gib));
    };
    let Some(iops) = request.iops.or(default) else {
        return Err(InvalidSpec::IopsMissing { volume_type: rules.volume_type });
    };
    if iops < min {
        return Err(InvalidSpec::IopsTooLow { iops, min });
    }
    if iops > max {
        return Err(above(rules, InvalidSpec::IopsTooHigh { iops, max }));
    }
    if iops > any_size && iops > size_gib.saturating_mul(per_gib) {
        let separate = InvalidSpec::IopsRatioTooHigh { iops, size_gib, per_gib_max: per_gib };
        return Err(above(rules, separate));
    }
    Ok(Some(iops))
}

fn resolve_throughput(
    rules: &TypeRules,
    request: &VolumeRequest,
    iops: Option<u32>,
) -> Result<Option<u32>, InvalidSpec> {
    let ThroughputRule::Provisioned { min_mibps, max_mibps, default_mibps, mibps_per_iops } =
        rules.throughput
    else {
        return Ok(None);
    };
    let mibps = request.throughput_mibps.unwrap_or(default_mibps);
    if mibps < min_mibps {
        return Err(InvalidSpec::ThroughputTooLow { mibps, min: min_mibps });
    }
    if mibps > max_mibps {
        return Err(InvalidSpec::ThroughputTooHigh { mibps, max: max_mibps });
    }
    let iops = iops.unwrap_or(0);
    if mibps_per_iops.is_exceeded(mibps, iops) {
        return Err(InvalidSpec::ThroughputRatioTooHigh { mibps, iops, max: mibps_per_iops });
    }
    Ok(Some(mibps))
}

/// Returns the error for a value above a limit: `separate`, or the text that names all limits.
fn above(rules: &TypeRules, separate: InvalidSpec) -> InvalidSpec {
    match (rules.limit_errors, rules.iops) {
        (LimitErrors::Combined, IopsRule::Provisioned { max, per_gib, .. }) => {
            InvalidSpec::AboveCombinedLimits {
                volume_type: rules.volume_type,
                size_gib_max: rules.size_gib_max,
                iops_max: max,
                per_gib_max: per_gib,
            }
        }
        _ => separate,
    }
}
