"""The tables and functions of a `PostgresStore`, and how they get into a database.

One statement of ours is one call of one function: what has to be decided with the rows
locked is decided where they are, so that many changes travel together and none needs a savepoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

from goliath_actors.errors import StoreTooNew

__all__ = ["MIGRATIONS", "Connection", "migrate"]

# Any: psycopg's row type; each reader of a row names its columns.
Connection = psycopg.Connection[tuple[Any, ...]]

# One script a version; `meta.version` says how many a database has had. Never change one: add one.
#
# Keys, ids, owners and JSON texts are bytes: a text of Postgres holds no NUL and no half of a surrogate pair, users'
# texts do. Their order is that of the bytes, which is that of code points. Visibility that was changed stands beside
# the body (NULL: as the body says), so that changing it needs no reading. `entries.body` is NULL where an entry was set
# aside; its position stays taken.
MIGRATIONS: tuple[str, ...] = (
    """
CREATE TABLE records (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key bytea NOT NULL UNIQUE, version bigint NOT NULL,
    entries bigint NOT NULL, failures bigint NOT NULL, memory bytea, metadata bytea, private bytea);
CREATE TABLE entries (
    record bigint NOT NULL, position bigint NOT NULL, id bytea NOT NULL, idempotency_key bytea,
    transcript boolean, context boolean, body bytea,
    PRIMARY KEY (record, position), UNIQUE (record, id));
CREATE INDEX entries_by_idempotency_key ON entries (record, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE TABLE leases (
    key bytea PRIMARY KEY, owner bytea, token bigint NOT NULL, expires timestamptz NOT NULL, ttl interval NOT NULL);
-- What could not be read, as it was. `reported` is false until somebody was told of it.
CREATE TABLE quarantine (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key bytea NOT NULL, at timestamptz NOT NULL DEFAULT now(),
    reason text NOT NULL, reported boolean NOT NULL DEFAULT false, part_of bigint, content jsonb NOT NULL);
CREATE INDEX quarantine_unreported ON quarantine (key) WHERE NOT reported;

-- One commit. Decides first, changes after: whatever `status` but 'ok' it returns, nothing was changed.
CREATE FUNCTION commit_change(
    p_key bytea, p_expect bigint, p_token bigint,
    p_sets_memory boolean, p_memory bytea, p_sets_metadata boolean, p_metadata bytea,
    p_sets_private boolean, p_private bytea, p_failures bigint, p_truncate bytea,
    p_ids bytea[], p_idempotency_keys bytea[], p_bodies bytea[],
    p_shown bytea[], p_shown_transcripts boolean[], p_shown_contexts boolean[],
    OUT status text, OUT detail bytea, OUT number bigint, OUT o_version bigint, OUT o_entries bigint,
    OUT o_failures bigint, OUT o_memory bytea, OUT o_metadata bytea, OUT o_private bytea)
LANGUAGE plpgsql AS $body$
#variable_conflict use_column
DECLARE
    old records%ROWTYPE;
    newest bigint;
    kept bigint;
BEGIN
    LOOP
        SELECT * INTO old FROM records WHERE key = p_key FOR UPDATE;
        IF NOT FOUND THEN
            old.id := NULL; old.version := 0; old.entries := 0; old.failures := 0;
            SELECT id, convert_to(reason, 'UTF8') INTO number, detail FROM quarantine
                WHERE key = p_key AND NOT reported ORDER BY id LIMIT 1;
            IF FOUND THEN status := 'untold'; RETURN; END IF;
        END IF;
        IF p_expect <> old.version THEN status := 'version'; number := old.version; RETURN; END IF;
        IF p_token IS NOT NULL THEN
            -- FOR SHARE: nobody gets a newer lease before this transaction is over.
            SELECT token INTO newest FROM leases WHERE key = p_key FOR SHARE;
            IF p_token < newest THEN status := 'token'; number := newest; RETURN; END IF;
        END IF;
        kept := old.entries;
        IF p_truncate = ''::bytea THEN
            kept := 0;
        ELSIF p_truncate IS NOT NULL THEN
            SELECT position INTO kept FROM entries WHERE record = old.id AND id = p_truncate;
            IF NOT FOUND THEN status := 'unknown'; detail := p_truncate; RETURN; END IF;
        END IF;
        SELECT new.id INTO detail FROM unnest(p_ids) WITH ORDINALITY AS new(id, n)
            WHERE EXISTS (SELECT FROM entries e WHERE e.record = old.id AND e.id = new.id AND e.position <= kept)
                OR new.id = ANY (p_ids[: new.n - 1])
            ORDER BY new.n LIMIT 1;
        IF FOUND THEN status := 'duplicate'; RETURN; END IF;
        SELECT shown.id INTO detail FROM unnest(p_shown) WITH ORDINALITY AS shown(id, n)
            WHERE NOT shown.id = ANY (p_ids) AND NOT EXISTS (
                SELECT FROM entries e WHERE e.record = old.id AND e.id = shown.id AND e.position <= kept
                    AND e.body IS NOT NULL)
            ORDER BY shown.n LIMIT 1;
        IF FOUND THEN status := 'unknown'; RETURN; END IF;
        o_version := old.version + 1;
        o_entries := kept + cardinality(p_ids);
        o_failures := coalesce(p_failures, old.failures);
        IF p_sets_memory THEN old.memory := p_memory; ELSE o_memory := old.memory; END IF;
        IF p_sets_metadata THEN old.metadata := p_metadata; ELSE o_metadata := old.metadata; END IF;
        IF p_sets_private THEN old.private := p_private; ELSE o_private := old.private; END IF;
        IF old.id IS NOT NULL THEN
            UPDATE records SET version = o_version, entries = o_entries, failures = o_failures, memory = old.memory,
                metadata = old.metadata, private = old.private WHERE id = old.id;
            EXIT;
        END IF;
        INSERT INTO records (key, version, entries, failures, memory, metadata, private)
            VALUES (p_key, o_version, o_entries, o_failures, old.memory, old.metadata, old.private)
            ON CONFLICT (key) DO NOTHING RETURNING id INTO old.id;
        EXIT WHEN FOUND;
        -- Another connection was quicker: decide anew.
    END LOOP;
    IF kept < old.entries THEN
        DELETE FROM entries WHERE record = old.id AND position > kept;
    END IF;
    INSERT INTO entries (record, position, id, idempotency_key, body)
        SELECT old.id, kept + new.n, new.id, new.idempotency_key, new.body
        FROM unnest(p_ids, p_idempotency_keys, p_bodies) WITH ORDINALITY AS new(id, idempotency_key, body, n);
    IF cardinality(p_shown) > 0 THEN
        UPDATE entries SET transcript = shown.transcript, context = shown.context
            FROM unnest(p_shown, p_shown_transcripts, p_shown_contexts) AS shown(id, transcript, context)
            WHERE entries.record = old.id AND entries.id = shown.id;
    END IF;
    status := 'ok';
END $body$;

CREATE FUNCTION forget_record(p_key bytea) RETURNS boolean LANGUAGE plpgsql AS $body$
DECLARE
    v_id bigint;
BEGIN
    DELETE FROM records WHERE key = p_key RETURNING id INTO v_id;
    DELETE FROM entries WHERE record = v_id;
    DELETE FROM quarantine WHERE key = p_key;
    RETURN v_id IS NOT NULL;
END $body$;

-- The token, or NULL if another holds the lease. All times are the server's. A lease that would last longer than it was
-- given for is one from before the clock was set back: it holds nobody up.
CREATE FUNCTION acquire_lease(p_key bytea, p_owner bytea, p_ttl double precision) RETURNS bigint LANGUAGE sql AS $body$
    INSERT INTO leases AS l VALUES (p_key, p_owner, 1,
        clock_timestamp() + make_interval(secs => p_ttl), make_interval(secs => p_ttl))
    ON CONFLICT (key) DO UPDATE SET owner = p_owner, token = l.token + (l.owner IS DISTINCT FROM p_owner)::int,
        expires = clock_timestamp() + make_interval(secs => p_ttl), ttl = make_interval(secs => p_ttl)
        WHERE l.owner IS NULL OR l.owner = p_owner OR l.expires <= clock_timestamp()
            OR l.expires > clock_timestamp() + l.ttl
    RETURNING token
$body$;

CREATE FUNCTION release_lease(p_key bytea, p_owner bytea) RETURNS boolean LANGUAGE sql AS $body$
    UPDATE leases SET owner = NULL WHERE key = p_key AND owner = p_owner;
    SELECT true
$body$;

-- Moves what was seen and could not be read, if it is still there as it was seen; returns the row of the quarantine.
CREATE FUNCTION set_aside_record(p_key bytea, p_version bigint, p_reason text) RETURNS bigint
LANGUAGE plpgsql AS $body$
DECLARE
    old records%ROWTYPE;
    v_place bigint;
BEGIN
    SELECT * INTO old FROM records WHERE key = p_key AND version = p_version FOR UPDATE;
    IF NOT FOUND THEN RETURN NULL; END IF;
    INSERT INTO quarantine (key, reason, content) VALUES (p_key, p_reason, to_jsonb(old)) RETURNING id INTO v_place;
    INSERT INTO quarantine (key, reason, reported, part_of, content)
        SELECT p_key, p_reason, true, v_place, to_jsonb(e) FROM entries e WHERE record = old.id ORDER BY position;
    DELETE FROM entries WHERE record = old.id;
    DELETE FROM records WHERE id = old.id;
    RETURN v_place;
END $body$;

CREATE FUNCTION set_aside_entry(p_record bigint, p_position bigint, p_body bytea, p_reason text) RETURNS bigint
LANGUAGE plpgsql AS $body$
DECLARE
    v_place bigint;
BEGIN
    INSERT INTO quarantine (key, reason, content)
        SELECT r.key, p_reason, to_jsonb(e) FROM entries e JOIN records r ON r.id = e.record
        WHERE e.record = p_record AND e.position = p_position AND e.body = p_body
        RETURNING id INTO v_place;
    IF FOUND THEN
        UPDATE entries SET body = NULL, idempotency_key = NULL WHERE record = p_record AND position = p_position;
    END IF;
    RETURN v_place;
END $body$;

CREATE FUNCTION note_told(p_place bigint) RETURNS boolean LANGUAGE sql AS $body$
    UPDATE quarantine SET reported = true WHERE id = p_place;
    SELECT true
$body$;
""",
    """
-- The last transaction of each process that writes, so that one whose COMMIT had no answer can be looked up. A
-- transaction's own id would not do: after a crash the server gives ids again that had not reached its disk.
CREATE TABLE writers (id uuid PRIMARY KEY, number bigint NOT NULL, at timestamptz NOT NULL DEFAULT now());

CREATE FUNCTION note_writer(p_id uuid, p_number bigint) RETURNS boolean LANGUAGE sql AS $body$
    DELETE FROM writers WHERE p_number = 1 AND at < now() - interval '7 days';
    INSERT INTO writers VALUES (p_id, p_number)
        ON CONFLICT (id) DO UPDATE SET number = p_number, at = now();
    SELECT true
$body$;

-- The number of the last transaction that is there; one that is under way is waited for.
CREATE FUNCTION last_of_writer(p_id uuid) RETURNS bigint LANGUAGE plpgsql AS $body$
DECLARE
    found bigint;
BEGIN
    INSERT INTO writers VALUES (p_id, 0) ON CONFLICT (id) DO NOTHING;
    SELECT number INTO found FROM writers WHERE id = p_id FOR UPDATE;
    RETURN found;
END $body$;
""",
    # The parts of `commit_change` that look an entry up by its id. As EXISTS they were planned as a walk through all
    # entries of the conversation, so that a commit cost more with each one that had gone before.
    """
DO $do$
DECLARE
    old text := pg_get_functiondef('commit_change'::regproc);
    new text := replace(replace(replace(replace(old,
        'EXISTS (SELECT FROM entries e WHERE e.record = old.id AND e.id = new.id AND e.position <= kept)',
        '(SELECT e.position FROM entries e WHERE e.record = old.id AND e.id = new.id) <= kept'),
        'SELECT shown.id INTO detail FROM unnest(p_shown)',
        'IF cardinality(p_shown) > 0 THEN SELECT shown.id INTO detail FROM unnest(p_shown)'),
        'AND NOT EXISTS (
                SELECT FROM entries e WHERE e.record = old.id AND e.id = shown.id AND e.position <= kept
                    AND e.body IS NOT NULL)
            ORDER BY shown.n LIMIT 1;
        IF FOUND THEN status := ''unknown''; RETURN; END IF;',
        'AND ((
                SELECT e.position FROM entries e WHERE e.record = old.id AND e.id = shown.id AND e.body IS NOT NULL)
                    <= kept) IS NOT TRUE
            ORDER BY shown.n LIMIT 1;
        IF FOUND THEN status := ''unknown''; RETURN; END IF; END IF;'),
        'IF cardinality(p_shown) > 0 THEN
        UPDATE entries SET transcript = shown.transcript, context = shown.context
            FROM unnest(p_shown, p_shown_transcripts, p_shown_contexts) AS shown(id, transcript, context)
            WHERE entries.record = old.id AND entries.id = shown.id;
    END IF;',
        'FOR n IN 1 .. cardinality(p_shown) LOOP
        UPDATE entries SET transcript = p_shown_transcripts[n], context = p_shown_contexts[n]
            WHERE record = old.id AND id = p_shown[n];
    END LOOP;');
BEGIN
    IF new NOT LIKE '%new.id) <= kept%IF cardinality%IS NOT TRUE%END IF; END IF;%LOOP%' THEN
        RAISE EXCEPTION 'commit_change is not as it was made';
    END IF;
    EXECUTE new;
END $do$;
""",
)

# One number for all our schemas: openers wait for each other for a moment, whoever they are. "GolA".
_LOCK = 0x476F6C41


def migrate(connection: Connection, schema: str, migrations: Sequence[str]) -> None:
    """Bring `schema` to the newest of `migrations`, in one transaction: a crash leaves the old one.

    Raises: `StoreTooNew` for a schema that has had more, which is left untouched; `psycopg.Error`.
    """
    if _version(connection, schema) == len(migrations):
        return
    # A lock of the session, held before the transaction begins: so that it sees what a quicker process has made.
    connection.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
    try:
        with connection.transaction():
            _bring_up(connection, schema, migrations)
    finally:
        # Not on a connection that is lost: that gives the lock back by itself, and what happened is on its way out.
        if not connection.closed:
            connection.execute("SELECT pg_advisory_unlock(%s)", (_LOCK,))


def _bring_up(connection: Connection, schema: str, migrations: Sequence[str]) -> None:
    newest, found = len(migrations), _version(connection, schema)
    if found > newest:
        raise StoreTooNew(
            f"the schema {schema!r} of the database has version {found}, this version of goliath_actors knows up to "
            f"{newest}; update goliath_actors or name another schema (it was left untouched)"
        )
    name = sql.Identifier(schema)
    if found == 0:
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(name))
        connection.execute(sql.SQL("CREATE TABLE {}.meta (version integer NOT NULL)").format(name))
        connection.execute(sql.SQL("INSERT INTO {}.meta VALUES (0)").format(name))
    for script in migrations[found:]:
        connection.execute(script.encode())
    connection.execute(sql.SQL("UPDATE {}.meta SET version = %s").format(name), (newest,))


def _version(connection: Connection, schema: str) -> int:
    with connection.transaction():
        (there,) = _one(connection.execute("SELECT to_regclass(%s) IS NOT NULL", (f'"{schema}".meta',)).fetchone())
        if not there:
            return 0
        (version,) = _one(
            connection.execute(sql.SQL("SELECT version FROM {}.meta").format(sql.Identifier(schema))).fetchone()
        )
    return int(version)


def _one(row: tuple[Any, ...] | None) -> tuple[Any, ...]:
    assert row is not None
    return row
