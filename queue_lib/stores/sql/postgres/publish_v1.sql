-- The operations of the PostgreSQL store, one function and so one round trip each.
--
-- Why functions: each statement inside has a snapshot of its own, so "lock, then read" is right
-- without a second round trip; and the server keeps their plans, also behind a pooler. The text
-- below counts on READ COMMITTED; a stricter level would read from before the locks.
--
-- A released version is never changed: workers of two releases run side by side during a deploy.
-- What changes gets the next number, in the next file, by a migration.
--
-- Where the SET clauses stand, the plan is made once, from whatever statistics there were: on an
-- empty table that would be a plan for empty tables. With them each statement keeps to the index
-- it was written for. (jit: the guess that a LIMIT reads a tenth of a million rows would have
-- each claim compiled first.) For the same reason rows that are locked are found again by ctid,
-- which the lock keeps in place, and not by a list of keys: for that, a plan made on an empty
-- table may read the whole group. And where a row is looked up for each of many, it is a scalar
-- or lateral subquery with an index of its own, not an EXISTS, which may become a hash of all.
--
-- {q} is the schema and the prefix: nothing of ours is looked up by search_path.
--
-- Who waits for whom, in this order and never back:
--   topics row  <- publishers share it, registering a group is alone
--   lane        <- a stripe of (topic, key): publishers alone; who settles shares it, never waits
--   messages    <- by id: two publishers of one id
--   deliveries  <- by seq: two operations under one claim

-- name: now_v1
create or replace function {q}now_v1(p_now bigint) returns bigint language sql as $$
  select coalesce(p_now, (extract(epoch from clock_timestamp()) * 1000000)::bigint)
$$;

-- The two halves of a lane's lock. Stripes, because 50,000 exact locks overflow the lock table;
-- two keys on one stripe wait for each other, no more.
-- name: lanes_v1
create or replace function {q}lanes_v1(p_topic int) returns int language sql immutable as $$
  select hashtext('{q}lanes') # p_topic
$$;

-- name: stripe_v1
create or replace function {q}stripe_v1(p_key text) returns int language sql immutable as $$
  select (hashtextextended(p_key, 1) & 1023)::int
$$;

-- (READ UNCOMMITTED is the same here, under another name.)
-- name: is_read_committed_v1
create or replace function {q}is_read_committed_v1() returns boolean language sql stable as $$
  select current_setting('transaction_isolation') in ('read committed', 'read uncommitted')
$$;

-- name: require_read_committed_v1
create or replace function {q}require_read_committed_v1() returns void language plpgsql as $$
begin
  if not {q}is_read_committed_v1() then
    raise exception 'the transaction must be READ COMMITTED' using errcode = 'QL001';
  end if;
end $$;

-- All the locks of a publish; returns the ids of the topics, or null if there are keys and the
-- isolation is too strict for them. (No SET clauses: it reads only the small topics table, by
-- its unique index.)
-- name: lock_v1
create or replace function {q}lock_v1(p_topics text[], p_nth int[], p_keys text[])
returns int[] language plpgsql as $$
declare
  v_name text;
  v_id int;
  v_ids int[] := '{}';
begin
  -- A snapshot that is older than the lane's last acknowledgement would have the message wait
  -- for a predecessor that is gone.
  if p_keys is not null and not {q}is_read_committed_v1() then
    return null;
  end if;
  -- Topics first, in the caller's sorted order. Against ensure_group: it updates this row before
  -- it looks at messages, so it comes wholly before this publish, and is seen by the later
  -- statement that reads the groups, or wholly after, and sees the messages. Publishers do not
  -- queue behind a waiting ensure_group. In a stricter caller's transaction its update is a
  -- serialization failure here, where reading old groups would lose the message.
  -- The loop: the first publish to a topic that another transaction is just making waits for
  -- that transaction in the insert, and finds the row, or makes it, in the next round.
  foreach v_name in array p_topics loop
    loop
      select t.id into v_id from {q}topics t where t.name = v_name for share;
      exit when found;
      insert into {q}topics (name) values (v_name) on conflict (name) do nothing;
    end loop;
    v_ids := v_ids || v_id;
  end loop;
  -- Then the lanes, to the end of the transaction: the order within a lane is the order of
  -- commits, and of two first messages of a lane only one sees it empty. Sorted: two publishers
  -- of the same lanes cannot block each other crosswise.
  if p_keys is not null then
    perform pg_advisory_xact_lock(l.class, l.stripe)
    from (
      select distinct {q}lanes_v1(v_ids[coalesce(r.nth, 1)]) as class, {q}stripe_v1(r.key) as stripe
      from unnest(p_nth, p_keys) as r(nth, key)
      where r.key is not null
      order by 1, 2
    ) l;
  end if;
  return v_ids;
end $$;

-- Stores the messages that are new and fans them out. p_topics: the distinct topics, sorted;
-- p_nth: the number of each message's topic in it; null: all have the first. p_wake: wakes others
-- at the commit, signed with this; null: it does not. p_borrowed: the transaction is the caller's.
-- False: nothing was done, since the caller's isolation is too strict for keys. (Not an error,
-- which would end the caller's transaction.)
-- name: append_v1
create or replace function {q}append_v1(
  p_topics text[], p_nth int[], p_ids text[], p_keys text[], p_payloads bytea[],
  p_headers text[], p_priorities int[], p_deliver_at bigint[], p_published_at bigint[],
  p_dead_letter boolean[], p_borrowed boolean, p_wake text, p_now bigint default null
) returns boolean language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  v_topics int[];
  v_now bigint;
  v_stored bigint;
begin
  if not p_borrowed then
    perform {q}require_read_committed_v1();
  end if;
  v_topics := {q}lock_v1(p_topics, p_nth, p_keys);
  if v_topics is null then
    return false;
  end if;
  v_now := {q}now_v1(p_now);
  with input as materialized (
    -- Numbered in publish order, and after the lane's lock: seq is the order within the lane.
    select nextval('{q}message_seq') as seq, v_topics[coalesce(r.nth, 1)] as topic_id, r.*
    from (
      select * from unnest(
        p_nth, p_ids, p_keys, p_payloads, p_headers, p_priorities, p_deliver_at, p_published_at,
        p_dead_letter
      ) with ordinality as u(
        nth, id, key, payload, headers, priority, deliver_at, published_at, dead_letter, place
      ) order by u.place
    ) r
  ), stored as (
    -- In id order: two publishers of the same ids in reverse order wait, they do not deadlock.
    insert into {q}messages (
      seq, id, topic_id, key, payload, headers, priority, deliver_at, published_at, stored_at,
      untaken
    )
    select i.seq, i.id, i.topic_id, i.key, i.payload, i.headers, i.priority, i.deliver_at,
      i.published_at, v_now,
      coalesce(i.dead_letter, false)
        and (select true from {q}groups g where g.topic_id = i.topic_id limit 1) is null
    from input i
    order by i.id collate "C", i.seq
    on conflict (id) do nothing
    returning seq, topic_id, key, priority, deliver_at
  ), placed as materialized (
    -- Behind another of its lane: an earlier one of this call, or one that is live.
    select g.id as group_id, s.seq, s.key, s.priority, s.deliver_at,
      s.key is not null and (
        row_number() over (partition by g.id, s.key order by s.seq) > 1
        or coalesce((
          select true from {q}deliveries h
          where h.group_id = g.id and h.key = s.key
            and h.key is not null and h.state in (0, 1, 3, 5, 6)
          limit 1
        ), false)
      ) as behind
    from stored s join {q}groups g on g.topic_id = s.topic_id
  ), fanned as (
    insert into {q}deliveries (group_id, seq, state, priority, at, key)
    select p.group_id, p.seq,
      case when p.behind then 2 when p.deliver_at > v_now then 1 else 0 end,
      p.priority,
      case when p.behind then p.deliver_at else greatest(p.deliver_at, v_now) end,
      p.key
    from placed p
  )
  select count(*) into v_stored from stored;
  if v_stored > 0 and p_wake is not null then
    if cardinality(p_topics) > 16 then
      perform pg_notify('queue_lib', p_wake || ' *');
    else
      perform pg_notify('queue_lib', p_wake || ' ' || t.name) from unnest(p_topics) as t(name);
    end if;
  end if;
  return true;
end $$;
