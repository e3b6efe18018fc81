//! ListSnapshotBlocks and ListChangedBlocks: pages of blocks in ascending order, with their
//! tokens.

use evenkeel_core::ids::SnapshotId;
use evenkeel_core::time::UnixMs;
use evenkeel_wire::agent::{UNIT_BYTES, Units, UnitsWanted};
use evenkeel_wire::aws::query::Params;
use serde_json::{Map, Value, json};

use super::tokens::BLOCK_LIFETIME_MS;
use super::{Answer, DirectError, nothing_left, number};
use crate::api::Api;
use crate::plane::{Plane, PlaneError};

/// Minimum and maximum number of blocks in a page.
const RESULTS_MIN: u64 = 100;
const RESULTS_MAX: u64 = 10_000;

/// The units with data of a snapshot, read in ascending order.
struct Data<'a> {
    plane: &'a Plane,
    id: SnapshotId,
    /// Known units from `first` on, complete up to `Units::next`.
    first: u64,
    known: Option<Units>,
}

impl<'a> Data<'a> {
    fn of(plane: &'a Plane, id: SnapshotId) -> Self {
        Self { plane, id, first: 0, known: None }
    }

    fn has(&mut self, unit: u64) -> Result<bool, PlaneError> {
        let covers = |known: &Units| known.next.is_none_or(|next| unit < next);
        if self.first > unit || !self.known.as_ref().is_some_and(covers) {
            let max = RESULTS_MAX as u32;
            let wanted = UnitsWanted { id: self.id, older: None, first: unit, max };
            self.known = Some(self.plane.units(wanted)?.1);
            self.first = unit;
        }
        Ok(self.known.as_ref().is_some_and(|known| known.units.binary_search(&unit).is_ok()))
    }
}

impl Api {
    fn page(
        &self,
        id: SnapshotId,
        older: Option<SnapshotId>,
        mut params: Params,
    ) -> Result<(Units, Map<String, Value>, UnixMs), DirectError> {
        let now = self.plane().clock().unix_ms();
        let start = params.take("startingBlockIndex");
        let start = start.map(|text| number(&text, "startingBlockIndex")).transpose()?;
        let max = params.take("maxResults").map(|text| number(&text, "maxResults")).transpose()?;
        let max = max.unwrap_or(RESULTS_MAX);
        if !(RESULTS_MIN..=RESULTS_MAX).contains(&max) {
            return Err(DirectError::parameter(format!(
                "maxResults is {max}; it must be between {RESULTS_MIN} and {RESULTS_MAX}"
            )));
        }
        let token = params.take("pageToken").filter(|token| !token.is_empty());
        nothing_left(&params)?;
        let first = match token {
            Some(token) => self.page_of(&token, (id, older))?,
            None => start.unwrap_or(0),
        };
        let wanted = UnitsWanted { id, older, first, max: max as u32 };
        let (snapshot, units) = self.plane().units(wanted)?;
        let until = now.plus_ms(BLOCK_LIFETIME_MS);
        let mut fields = Map::new();
        fields.insert("ExpiryTime".into(), seconds(until));
        fields.insert("VolumeSize".into(), snapshot.size_gib.into());
        fields.insert("BlockSize".into(), UNIT_BYTES.into());
        if let Some(next) = units.next {
            fields.insert("NextToken".into(), self.page_token((id, older), next, now).into());
        }
        Ok((units, fields, until))
    }

    pub(super) fn list_blocks(
        &self,
        id: SnapshotId,
        params: Params,
    ) -> Result<Answer, DirectError> {
        let (units, mut fields, until) = self.page(id, None, params)?;
        let block = |unit: &u64| {
            let token = self.block_token(id, *unit, until);
            json!({ "BlockIndex": unit, "BlockToken": token })
        };
        fields.insert("Blocks".into(), units.units.iter().map(block).collect());
        Ok(Answer::json(200, &fields.into()))
    }

    pub(super) fn list_changed(
        &self,
        id: SnapshotId,
        first: Option<SnapshotId>,
        params: Params,
    ) -> Result<Answer, DirectError> {
        let (units, mut fields, until) = self.page(id, first, params)?;
        let mut here = Data::of(self.plane(), id);
        let mut there = first.map(|first| Data::of(self.plane(), first));
        let mut changed = Vec::with_capacity(units.units.len());
        for unit in units.units {
            let mut block = Map::new();
            block.insert("BlockIndex".into(), unit.into());
            if let Some(there) = &mut there
                && there.has(unit)?
            {
                let token = self.block_token(there.id, unit, until);
                block.insert("FirstBlockToken".into(), token.into());
            }
            if here.has(unit)? {
                block.insert("SecondBlockToken".into(), self.block_token(id, unit, until).into());
            }
            changed.push(Value::from(block));
        }
        fields.insert("ChangedBlocks".into(), changed.into());
        Ok(Answer::json(200, &fields.into()))
    }
}

/// Returns a time in the form of the API's JSON: seconds, with decimals.
pub(crate) fn seconds(time: UnixMs) -> Value {
    // Exact for some hundred thousand years.
    json!(time.0 as f64 / 1_000.0)
}
