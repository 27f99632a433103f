-- What a Postgres node keeps: one row per resource that was ever asked for, and one function per call.
--
-- Each call is one statement, and so one transaction: what a function looks at is locked (FOR UPDATE, in the order of the
-- keys, so that two calls never wait for each other in a circle) before anything is decided, and stays so until it has been
-- done. Under READ COMMITTED every statement inside a function sees what was committed when it began; the rows come after
-- the wait for their locks. The node asks for that level when it connects, and the functions work on no other.
--
-- Time is the server's, clock_timestamp(): that of the present and not of the transaction's beginning, since a call may
-- have waited. A lock has ended when expires_at is not later than that. Counters are signed 64-bit integers; rows are never
-- deleted, so a counter outlives all locks.

CREATE TABLE IF NOT EXISTS redlock_node (
    key        bytea PRIMARY KEY,
    owner      text,
    expires_at timestamptz,
    counter    bigint NOT NULL DEFAULT 0
);

CREATE OR REPLACE FUNCTION redlock_lock_rows(keys bytea[]) RETURNS SETOF redlock_node LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'a lock needs READ COMMITTED' USING ERRCODE = 'invalid_transaction_state';
    END IF;
    RETURN QUERY SELECT * FROM redlock_node WHERE key = ANY (keys) ORDER BY key FOR UPDATE;
END $$;

-- How an owner stands to resources: 1 holds all, 0 some are free and none another's, -1 some are another's.
CREATE OR REPLACE FUNCTION redlock_standing(keys bytea[], who text) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    standing integer := 1;
    found bigint := 0;
    one redlock_node;
BEGIN
    FOR one IN SELECT * FROM redlock_lock_rows(keys) LOOP
        found := found + 1;
        IF one.owner IS NULL OR one.expires_at <= clock_timestamp() THEN
            standing := least(standing, 0);
        ELSIF one.owner <> who THEN
            standing := -1;
        END IF;
    END LOOP;
    IF found < cardinality(keys) THEN
        standing := least(standing, 0);
    END IF;
    RETURN standing;
END $$;

-- Answers the new counter; or the position (from 1) of the first resource that is not free, its owner and what remains.
CREATE OR REPLACE FUNCTION redlock_acquire(keys bytea[], who text, ttl bigint, lowest bigint,
    OUT granted bigint, OUT in_the_way bigint, OUT holder text, OUT remaining bigint) LANGUAGE plpgsql AS $$
DECLARE
    one redlock_node;
    found bigint := 0;
BEGIN
    INSERT INTO redlock_node (key) SELECT key FROM unnest(keys) AS key ORDER BY key ON CONFLICT DO NOTHING;
    granted := lowest;
    FOR one IN SELECT * FROM redlock_lock_rows(keys) LOOP
        IF one.owner IS NOT NULL AND clock_timestamp() < one.expires_at THEN
            granted := NULL;
            in_the_way := array_position(keys, one.key);
            holder := one.owner;
            remaining := extract(epoch FROM one.expires_at - clock_timestamp()) * 1000;
            RETURN;
        END IF;
        found := found + 1;
        granted := greatest(granted, one.counter);
    END LOOP;
    -- Nothing of this library deletes a row. Who does so by hand may do it between the two statements, and a lock without a row
    -- would be none.
    IF found < cardinality(keys) THEN
        RAISE EXCEPTION 'a row was deleted meanwhile' USING ERRCODE = 'serialization_failure';
    END IF;
    granted := granted + 1;
    UPDATE redlock_node
        SET owner = who, expires_at = clock_timestamp() + ttl * interval '1 millisecond', counter = granted
        WHERE key = ANY (keys);
END $$;

-- Answers the greatest counter afterwards, or null if the owner does not hold all.
CREATE OR REPLACE FUNCTION redlock_raise(keys bytea[], who text, lowest bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF redlock_standing(keys, who) <> 1 THEN
        RETURN NULL;
    END IF;
    UPDATE redlock_node SET counter = lowest WHERE key = ANY (keys) AND counter < lowest;
    RETURN (SELECT max(counter) FROM redlock_node WHERE key = ANY (keys));
END $$;

CREATE OR REPLACE FUNCTION redlock_extend(keys bytea[], who text, ttl bigint) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    standing integer := redlock_standing(keys, who);
BEGIN
    IF standing = 1 THEN
        UPDATE redlock_node SET expires_at = clock_timestamp() + ttl * interval '1 millisecond' WHERE key = ANY (keys);
    END IF;
    RETURN standing;
END $$;

CREATE OR REPLACE FUNCTION redlock_release(keys bytea[], who text) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    standing integer := redlock_standing(keys, who);
BEGIN
    UPDATE redlock_node SET owner = NULL, expires_at = NULL WHERE key = ANY (keys) AND owner = who;
    RETURN standing;
END $$;
