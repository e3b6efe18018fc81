-- The tables of control.db in form 1; docs/internals/journal.md has the rule for other forms.

-- The last event of each object, as in etcd: the JSON of crates/control/src/journal/format.rs.
-- `kind` is volume, host, snapshot, token or user; or it is account, stop (a clean stop, until the next
-- change) or clock (the server's time), of which there is one each, with an empty `id`.
CREATE TABLE records (
    kind TEXT NOT NULL, id TEXT NOT NULL, json TEXT NOT NULL, PRIMARY KEY (kind, id)
) STRICT;
-- The part of each balance of a volume or host that is not leased to the data plane; after a clean
-- stop, all of it.
CREATE TABLE credits (id TEXT PRIMARY KEY, operations INTEGER, bytes INTEGER) STRICT;
-- The number of commits.
CREATE TABLE revision (
    only INTEGER PRIMARY KEY CHECK (only = 1), number INTEGER NOT NULL
) STRICT;
INSERT INTO revision VALUES (1, 0);

-- Views for people. The server does not read them, and they are no part of the form: a file keeps
-- those with which it was created. Times are milliseconds of Unix time; ids are as in the API.
CREATE VIEW volumes AS SELECT
    id, json ->> '$.event.zone' AS zone, json ->> '$.event.created_ms' AS created_ms,
    json ->> '$.event.spec.type' AS type, json ->> '$.event.spec.size_gib' AS size_gib,
    json ->> '$.event.spec.iops' AS iops,
    json ->> '$.event.spec.throughput_mibps' AS throughput_mibps,
    json ->> '$.event.phase.name' AS phase, json ->> '$.event.phase.reason' AS reason,
    json ->> '$.event.snapshot' AS snapshot_id, json ->> '$.event.source' AS source_id,
    json ->> '$.event.encrypted' AS encrypted
FROM records WHERE kind = 'volume';
CREATE VIEW attachments AS SELECT
    records.id AS volume_id, each.value ->> '$.instance' AS instance_id,
    each.value ->> '$.device' AS device, each.value ->> '$.state' AS state,
    each.value ->> '$.attached_ms' AS attached_ms
FROM records, json_each(records.json, '$.event.attachments') AS each WHERE kind = 'volume';
CREATE VIEW modifications AS SELECT
    id AS volume_id, json ->> '$.event.modification.started_ms' AS started_ms,
    json ->> '$.event.modification.phase.name' AS phase,
    json ->> '$.event.modification.phase.reason' AS reason,
    json -> '$.event.modification.original' AS original,
    json -> '$.event.modification.target' AS target
FROM records WHERE kind = 'volume' AND json ->> '$.event.modification' IS NOT NULL;
CREATE VIEW snapshots AS SELECT
    id, json ->> '$.event.volume' AS volume_id, json ->> '$.event.size_gib' AS volume_size_gib,
    json ->> '$.event.description' AS description, json ->> '$.event.started_ms' AS started_ms,
    json ->> '$.event.phase.name' AS phase, json ->> '$.event.phase.reason' AS reason,
    json ->> '$.event.phase.data_bytes' AS data_bytes,
    json ->> '$.event.encrypted' AS encrypted,
    json -> '$.event.shared_with' AS shared_with
FROM records WHERE kind = 'snapshot';
CREATE VIEW hosts AS SELECT
    id, json ->> '$.event.type' AS type, json ->> '$.event.address' AS address,
    json ->> '$.event.registered_ms' AS registered_ms,
    json ->> '$.event.state.name' AS state, json ->> '$.event.zone' AS zone
FROM records WHERE kind = 'host';
CREATE VIEW tags AS SELECT records.id AS resource_id, each.key AS key, each.value AS value
FROM records, json_each(records.json, '$.event.tags') AS each
WHERE kind IN ('volume', 'host', 'snapshot');
CREATE VIEW client_tokens AS SELECT
    id AS token, json ->> '$.event.fingerprint' AS fingerprint,
    json ->> '$.event.volume' AS volume_id, json ->> '$.event.used_ms' AS used_ms
FROM records WHERE kind = 'token';
