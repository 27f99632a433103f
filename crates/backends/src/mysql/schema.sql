-- What a MySQL node keeps: one row per resource that was ever asked for, and one procedure per call.
--
-- Each call is one procedure, and so one round trip; inside it one transaction, that ends before the answer is sent. It locks the
-- rows of its resources one by one, in the order of their keys, so that two calls never wait for each other in a circle, and
-- decides when it has all of them. At READ COMMITTED, which each call asks for, what it reads under lock is what was committed
-- last. An error rolls back and is handed on.
--
-- Time is the server's: SYSDATE(), which tells the moment and not that of the call's beginning, in milliseconds since 1970. It
-- is read when the rows are locked. A server that runs with --sysdate-is-now tells the beginning after all; then a lock whose
-- call had to wait ends early by as much. A lock has ended when expires_at is not later than that. Rows are never deleted,
-- so a counter outlives all locks.
--
-- `wanted` is a JSON array of keys in hexadecimal digits, in ascending order; its character set is named, since a database's own may
-- be one in which JSON is not read (UTF-16, on MariaDB 10.11). Statements are separated by lines that say "next".
-- The number in the names is that of the version: another one stands beside it, for programs that know it.
-- next
CREATE TABLE IF NOT EXISTS redlock_node (
    id         VARBINARY(2048) NOT NULL PRIMARY KEY,
    owner      VARBINARY(255),
    expires_at BIGINT NOT NULL DEFAULT 0,
    counter    BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB
-- next
CREATE TABLE IF NOT EXISTS redlock_node_identity (
    only_row TINYINT NOT NULL PRIMARY KEY,
    identity VARCHAR(64) NOT NULL
) ENGINE = InnoDB
-- next
INSERT IGNORE INTO redlock_node_identity (only_row, identity) VALUES (1, UUID())
-- next
-- Locks the rows of all resources, which are made if they are not there, and tells what stands in them: the greatest counter;
-- how many of them the owner holds, how many others do; the first of the latter, with its owner and what remains.
CREATE PROCEDURE IF NOT EXISTS redlock_look_2(
    IN wanted LONGTEXT CHARACTER SET ascii, IN who VARBINARY(255), OUT moment BIGINT, OUT greatest BIGINT, OUT own INT,
    OUT others INT, OUT in_the_way INT, OUT holder VARBINARY(255), OUT remaining BIGINT
)
BEGIN
    DECLARE place INT DEFAULT 0;
    DECLARE this_id VARBINARY(2048);
    DECLARE this_owner VARBINARY(255);
    DECLARE this_end BIGINT;
    DECLARE this_counter BIGINT;
    -- Procedures run with the rights of who made them, who may write where others may not: on a replica, say.
    IF CAST(@@GLOBAL.read_only AS CHAR) NOT IN ('0', 'OFF') THEN
        SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 1290, MESSAGE_TEXT = 'the server is read-only';
    END IF;
    WHILE place < JSON_LENGTH(wanted) DO
        SET this_id = UNHEX(JSON_UNQUOTE(JSON_EXTRACT(wanted, CONCAT('$[', place, ']'))));
        -- Locks the row for writing whether it is there or not; INSERT IGNORE would lock it for reading first.
        INSERT INTO redlock_node (id) VALUES (this_id) ON DUPLICATE KEY UPDATE counter = counter;
        SET place = place + 1;
    END WHILE;
    SET moment = CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED);
    SET greatest = 0, own = 0, others = 0, in_the_way = NULL, holder = NULL, remaining = NULL, place = 0;
    WHILE place < JSON_LENGTH(wanted) DO
        SET this_id = UNHEX(JSON_UNQUOTE(JSON_EXTRACT(wanted, CONCAT('$[', place, ']'))));
        SELECT node.owner, node.expires_at, node.counter INTO this_owner, this_end, this_counter
            FROM redlock_node AS node WHERE node.id = this_id FOR UPDATE;
        SET greatest = GREATEST(greatest, this_counter);
        IF moment < this_end THEN
            IF this_owner = who THEN
                SET own = own + 1;
            ELSE
                SET others = others + 1;
            END IF;
            IF in_the_way IS NULL THEN
                SET in_the_way = place, holder = this_owner, remaining = this_end - moment;
            END IF;
        END IF;
        SET place = place + 1;
    END WHILE;
END
-- next
-- Writes to the rows of all resources that are the owner's, or to all of them where `who` takes them.
CREATE PROCEDURE IF NOT EXISTS redlock_write_2(
    IN wanted LONGTEXT CHARACTER SET ascii, IN new_owner VARBINARY(255), IN new_end BIGINT, IN new_counter BIGINT,
    IN only_of VARBINARY(255)
)
BEGIN
    DECLARE place INT DEFAULT 0;
    WHILE place < JSON_LENGTH(wanted) DO
        UPDATE redlock_node AS node
            SET node.owner = new_owner, node.expires_at = COALESCE(new_end, node.expires_at),
                node.counter = GREATEST(node.counter, new_counter)
            WHERE node.id = UNHEX(JSON_UNQUOTE(JSON_EXTRACT(wanted, CONCAT('$[', place, ']'))))
            AND (only_of IS NULL OR node.owner = only_of);
        SET place = place + 1;
    END WHILE;
END
-- next
-- Answers the new counter; or the place (from 0) of the first resource that is not free, its owner and what remains.
CREATE PROCEDURE IF NOT EXISTS redlock_acquire_2(
    IN wanted LONGTEXT CHARACTER SET ascii, IN who VARBINARY(255), IN ttl BIGINT, IN lowest BIGINT
)
BEGIN
    DECLARE moment, greatest, remaining, granted BIGINT;
    DECLARE own, others, in_the_way INT;
    DECLARE holder VARBINARY(255);
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    CALL redlock_look_2(wanted, who, moment, greatest, own, others, in_the_way, holder, remaining);
    IF in_the_way IS NULL THEN
        SET granted = GREATEST(greatest, lowest) + 1;
        CALL redlock_write_2(wanted, who, moment + ttl, granted, NULL);
    END IF;
    COMMIT;
    SELECT granted, CAST(in_the_way AS SIGNED), holder, remaining;
END
-- next
-- Answers the greatest counter afterwards, or NULL if the owner does not hold all.
CREATE PROCEDURE IF NOT EXISTS redlock_raise_2(IN wanted LONGTEXT CHARACTER SET ascii, IN who VARBINARY(255), IN lowest BIGINT)
BEGIN
    DECLARE moment, greatest, remaining, raised BIGINT;
    DECLARE own, others, in_the_way INT;
    DECLARE holder VARBINARY(255);
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    CALL redlock_look_2(wanted, who, moment, greatest, own, others, in_the_way, holder, remaining);
    IF own = JSON_LENGTH(wanted) THEN
        SET raised = GREATEST(greatest, lowest);
        CALL redlock_write_2(wanted, who, NULL, lowest, who);
    END IF;
    COMMIT;
    SELECT raised;
END
-- next
-- Answers 1 extended, 0 some are free and none another's, -1 some are another's.
CREATE PROCEDURE IF NOT EXISTS redlock_extend_2(IN wanted LONGTEXT CHARACTER SET ascii, IN who VARBINARY(255), IN ttl BIGINT)
BEGIN
    DECLARE moment, greatest, remaining BIGINT;
    DECLARE own, others, in_the_way INT;
    DECLARE holder VARBINARY(255);
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    CALL redlock_look_2(wanted, who, moment, greatest, own, others, in_the_way, holder, remaining);
    IF own = JSON_LENGTH(wanted) THEN
        CALL redlock_write_2(wanted, who, moment + ttl, 0, who);
    END IF;
    COMMIT;
    SELECT CAST(CASE WHEN own = JSON_LENGTH(wanted) THEN 1 WHEN others = 0 THEN 0 ELSE -1 END AS SIGNED);
END
-- next
-- Answers as extend does, of how it was before; whatever was the owner's is free afterwards.
CREATE PROCEDURE IF NOT EXISTS redlock_release_2(IN wanted LONGTEXT CHARACTER SET ascii, IN who VARBINARY(255))
BEGIN
    DECLARE moment, greatest, remaining BIGINT;
    DECLARE own, others, in_the_way INT;
    DECLARE holder VARBINARY(255);
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    CALL redlock_look_2(wanted, who, moment, greatest, own, others, in_the_way, holder, remaining);
    CALL redlock_write_2(wanted, NULL, 0, 0, who);
    COMMIT;
    SELECT CAST(CASE WHEN own = JSON_LENGTH(wanted) THEN 1 WHEN others = 0 THEN 0 ELSE -1 END AS SIGNED);
END
