//! Operations on the device: begun, gone on with if they were done in part, and what comes of each.

use super::{Op, Purpose, Volume};
use crate::buffer::Buffer;
use crate::disk::{Disk, DiskAction, DiskDone, DiskOp};
use crate::local::BLOCK_BYTES;
use crate::local::space::Run;
use evenkeel_core::request::Failure;
use rustix::io::Errno;

impl Volume {
    pub(super) fn begin_op(&mut self, op: Op, buffer: Option<Buffer>, disk: &mut dyn Disk) {
        let slot = self.hold_op(op);
        if let Some(op) = &self.ops[slot] {
            disk.submit(self.disk_op(slot, op, buffer));
        }
    }

    pub(super) fn hold_op(&mut self, op: Op) -> usize {
        let slot = self.free_ops.pop().unwrap_or_else(|| {
            self.ops.push(None);
            self.ops.len() - 1
        });
        self.ops[slot] = Some(op);
        slot
    }

    pub(super) fn disk_op(&self, slot: usize, op: &Op, buffer: Option<Buffer>) -> DiskOp {
        DiskOp {
            token: slot as u64,
            fd: self.device.fd(),
            action: op.action,
            offset: op.offset + u64::from(op.done),
            length: op.length - op.done,
            buffer,
            buffer_offset: op.done,
        }
    }

    pub(super) fn read_op(
        &mut self,
        purpose: Purpose,
        run: Run,
        buffer: Buffer,
        disk: &mut dyn Disk,
    ) {
        self.transfer(purpose, DiskAction::Read, run, buffer, disk);
    }

    pub(super) fn write_op(
        &mut self,
        purpose: Purpose,
        run: Run,
        buffer: Buffer,
        disk: &mut dyn Disk,
    ) {
        self.transfer(purpose, DiskAction::Write, run, buffer, disk);
    }

    pub(super) fn transfer(
        &mut self,
        purpose: Purpose,
        action: DiskAction,
        run: Run,
        buffer: Buffer,
        disk: &mut dyn Disk,
    ) {
        let offset = u64::from(run.block) * BLOCK_BYTES as u64;
        let op = Op { purpose, action, offset, length: run.count * BLOCK_BYTES as u32, done: 0 };
        self.begin_op(op, Some(buffer), disk);
    }

    pub(super) fn sync_op(&mut self, purpose: Purpose, disk: &mut dyn Disk) {
        let op = Op { purpose, action: DiskAction::Sync, offset: 0, length: 0, done: 0 };
        self.begin_op(op, None, disk);
    }

    pub(super) fn op_done(&mut self, done: DiskDone, disk: &mut dyn Disk) {
        let slot = done.token as usize;
        let Some(mut op) = self.ops[slot].take() else {
            unreachable!("device operation {slot} ended twice");
        };
        let result = match done.result {
            Ok(0) if op.length > op.done => Err(Failure::Io),
            Ok(count) if op.length > 0 => {
                op.done += count.min(op.length - op.done);
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(Errno::INTR | Errno::AGAIN) => Ok(()),
            Err(Errno::NOSPC | Errno::DQUOT) => Err(Failure::NoSpace),
            Err(_) => Err(Failure::Io),
        };
        let is_retried = matches!(done.result, Err(Errno::INTR | Errno::AGAIN));
        if result.is_ok() && (op.done < op.length || is_retried) {
            disk.submit(self.disk_op(slot, &op, done.buffer));
            self.ops[slot] = Some(op);
            return;
        }
        self.free_ops.push(slot);
        match op.purpose {
            Purpose::Data { request, part } => {
                self.data_done(request, part, result, done.buffer, disk);
            }
            Purpose::Page(wanted) => self.page_done(wanted, result, done.buffer.as_ref(), disk),
            Purpose::Log => self.log_done(result, disk),
            Purpose::CommitSync => self.commit_synced(result, disk),
            Purpose::Checkpoint => self.checkpoint_op_done(result, disk),
            Purpose::Chunks => self.take_chunks(disk),
            Purpose::Noted => self.noted(disk),
        }
    }
}
