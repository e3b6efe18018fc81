-- The tables of control.db, version 9. Times are milliseconds of Unix time; ids are as in the API.
-- `client_tokens.fingerprint` is a hash of the request; `hosts.address` is NULL for the local machine;
-- `credits` and `host_credits` hold what of a balance is not leased to the data plane, and after a clean stop all of it.
-- `revision` counts the commits.
-- `clean_stop` has a row only while no server has run since a clean stop; `leased` has one once a server has leased credits.

CREATE TABLE volumes (
    id TEXT PRIMARY KEY, zone TEXT NOT NULL, created_ms INTEGER NOT NULL,
    type TEXT NOT NULL, size_gib INTEGER NOT NULL, iops INTEGER, throughput_mibps INTEGER,
    multi_attach INTEGER NOT NULL, phase TEXT NOT NULL, reason TEXT, snapshot_id TEXT,
    source_id TEXT, through_id TEXT, encrypted INTEGER NOT NULL DEFAULT 0,
    fast_restored INTEGER NOT NULL DEFAULT 0, auto_enable_io INTEGER NOT NULL DEFAULT 0,
    binned_ms INTEGER, bin_until_ms INTEGER
) STRICT;
CREATE TABLE attachments (
    volume_id TEXT NOT NULL, position INTEGER NOT NULL, instance_id TEXT NOT NULL,
    device TEXT NOT NULL, state TEXT NOT NULL, attached_ms INTEGER NOT NULL,
    delete_on_termination INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (volume_id, position), UNIQUE (instance_id, device)
) STRICT;
CREATE TABLE modifications (
    volume_id TEXT PRIMARY KEY, started_ms INTEGER NOT NULL, phase TEXT NOT NULL,
    since_ms INTEGER, ended_ms INTEGER, reason TEXT,
    original_type TEXT NOT NULL, original_size_gib INTEGER NOT NULL, original_iops INTEGER,
    original_throughput_mibps INTEGER, original_multi_attach INTEGER NOT NULL,
    target_type TEXT NOT NULL, target_size_gib INTEGER NOT NULL, target_iops INTEGER,
    target_throughput_mibps INTEGER, target_multi_attach INTEGER NOT NULL
) STRICT;
CREATE TABLE modification_starts (
    volume_id TEXT NOT NULL, position INTEGER NOT NULL, started_ms INTEGER NOT NULL,
    PRIMARY KEY (volume_id, position)
) STRICT;
CREATE TABLE snapshots (
    id TEXT PRIMARY KEY, volume_id TEXT NOT NULL, volume_size_gib INTEGER NOT NULL,
    description TEXT NOT NULL, started_ms INTEGER NOT NULL, phase TEXT NOT NULL,
    data_bytes INTEGER, ended_ms INTEGER, reason TEXT,
    parent_id TEXT, timeout_min INTEGER, token TEXT, fingerprint TEXT,
    copy_of_id TEXT, for_volume_id TEXT, encrypted INTEGER NOT NULL DEFAULT 0,
    lock_mode TEXT, lock_created_ms INTEGER, lock_cool_off_hours INTEGER, lock_days INTEGER,
    lock_until_ms INTEGER, fast_since_ms INTEGER, fast_credits_micro INTEGER,
    fast_counted_ms INTEGER, binned_ms INTEGER, bin_until_ms INTEGER,
    tier_operation TEXT, tier_began_ms INTEGER, tier_archived_ms INTEGER, tier_until_ms INTEGER
) STRICT;
CREATE TABLE snapshot_shares (
    snapshot_id TEXT NOT NULL, account TEXT NOT NULL, PRIMARY KEY (snapshot_id, account)
) STRICT;
CREATE TABLE hosts (
    id TEXT PRIMARY KEY, type TEXT NOT NULL, address TEXT, registered_ms INTEGER NOT NULL,
    state TEXT NOT NULL DEFAULT 'running', terminated_ms INTEGER, zone TEXT
) STRICT;
CREATE TABLE tags (
    resource_id TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (resource_id, key)
) STRICT;
CREATE TABLE client_tokens (
    token TEXT PRIMARY KEY, fingerprint TEXT NOT NULL, volume_id TEXT NOT NULL,
    used_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE credits (
    volume_id TEXT PRIMARY KEY, operations INTEGER, bytes INTEGER
) STRICT;
CREATE TABLE host_credits (
    host_id TEXT PRIMARY KEY, operations INTEGER, bytes INTEGER
) STRICT;
CREATE TABLE account (
    only INTEGER PRIMARY KEY CHECK (only = 1), encrypt_by_default INTEGER,
    public_access TEXT NOT NULL DEFAULT 'unblocked'
) STRICT;
CREATE TABLE clean_stop (
    only INTEGER PRIMARY KEY CHECK (only = 1), stopped_ms INTEGER NOT NULL, boot_id TEXT, boot_ms INTEGER
) STRICT;
CREATE TABLE leased (
    only INTEGER PRIMARY KEY CHECK (only = 1)
) STRICT;
CREATE TABLE revision (
    only INTEGER PRIMARY KEY CHECK (only = 1), number INTEGER NOT NULL
) STRICT;
INSERT INTO revision VALUES (1, 0);
