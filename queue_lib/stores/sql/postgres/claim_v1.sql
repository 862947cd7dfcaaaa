-- Claiming. See publish_v1.sql and settle_v1.sql first.

-- Passes on the lanes whose head is over (5, 6) but whose follower nobody could see then. Locks
-- and tries the lanes in one statement, looks for followers in later ones: see settle_v1. A
-- publisher still open leaves the delivery for the next claim, unless a follower is visible now;
-- its NOTIFY at commit brings that claim about. (Runs inside claim_v1 only, under its SET clauses.)
-- name: promote_v1
create or replace function {q}promote_v1(p_group int, p_now bigint)
returns void language plpgsql as $$
declare
  v_lanes int;
  v_rows tid[];
  v_free int[];
begin
  select {q}lanes_v1(g.topic_id) into v_lanes from {q}groups g where g.id = p_group;
  select array_agg(o.ctid), array_agg(o.stripe) filter (where o.free)
  into v_rows, v_free
  from (
    select l.ctid, l.stripe, pg_try_advisory_xact_lock_shared(v_lanes, l.stripe) as free
    from (
      select d.ctid, {q}stripe_v1(d.key) as stripe from {q}deliveries d
      where d.group_id = p_group and d.state in (5, 6)
      order by d.seq limit 100 for update skip locked
    ) l
  ) o;
  if v_rows is not null then
    perform {q}finish_v1(p_group, v_rows, coalesce(v_free, '{}'), null, {q}now_v1(p_now));
  end if;
end $$;

-- Leases what is due, by (priority, seq). Ready rows, timers that ended and leases that ran out
-- are ranked together; of the latter two, those that are not taken become ready as well, so that
-- the next claim finds them in one index. An expired lease keeps its token on that way: until
-- somebody takes it, its holder may still settle it, and the attempt is counted when it is taken.
-- First it acknowledges what p_seqs and p_tokens hold, if they are given: a consumer that has done
-- a batch and wants the next one pays for one commit, and finds the followers of its own lanes.
-- (It may then wait for the group's row with deliveries locked. Nobody who has that row waits for
-- deliveries: claims skip what is locked.)
-- p_floor_*: hints of a consumer whose claims have become slow, for where to begin: behind the
-- (priority, seq) that it took last, at the timers and leases that ended since p_floor_age µs ago,
-- when it had looked at all. While some transaction stays open no vacuum removes what is dead, and
-- without the hints each claim walks all that was ever claimed. A hint may be wrong (a message of
-- higher priority, a late commit, a release come in below it), so less than was asked for is never
-- believed: the claim then looks at all. Whoever passes hints looks at all once a second besides.
-- A last row without seq tells, in deliver_at, the time in µs until the group's next timer ends,
-- if less was found than asked for; what was held, if anything was to be acknowledged; and, in
-- published_at, how many µs the looking took.
-- name: claim_v1
create or replace function {q}claim_v1(
  p_group int, p_seqs bigint[], p_tokens text[], p_keys text[], p_limit int, p_lease bigint,
  p_cap int, p_floor_priority int, p_floor_seq bigint, p_floor_age bigint,
  p_now bigint default null
) returns table (
  seq bigint, token text, attempts int, error text, id text, key text, payload bytea,
  headers text, priority int, deliver_at bigint, published_at bigint, held bigint[]
) language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
  v_now bigint;
  v_limit int := p_limit;
  v_leased bigint;
  v_expired bigint;
  v_taken tid[];
  v_ready tid[];
  v_held bigint[];
  v_next bigint;
  v_priority int := coalesce(p_floor_priority, -2147483648);
  v_seq bigint := coalesce(p_floor_seq, 0);
  v_since bigint := 0;
  v_begun timestamptz;
  v_took bigint;
begin
  perform {q}require_read_committed_v1();
  if p_seqs is not null then
    v_held := {q}settle_v1(p_group, p_seqs, p_tokens, p_keys, null, p_now);
  end if;
  if exists (select from {q}deliveries d where d.group_id = p_group and d.state in (5, 6)) then
    perform {q}promote_v1(p_group, p_now);
  end if;
  if p_cap > 0 then
    -- Capped claims come one after the other, and each counts in a later statement what the one
    -- before has leased.
    perform from {q}groups g where g.id = p_group for update;
  end if;
  v_now := {q}now_v1(p_now);
  if p_floor_age is not null then
    v_since := v_now - p_floor_age;
  end if;
  if p_cap > 0 then
    -- Counted first, then taken off: an expired lease that this can lock. One that it cannot
    -- lock may be an extend in flight, begun in time, that brings it back to life: it counts.
    -- (Reading `at >= v_now` instead would let this claim take its place, one above the cap.)
    -- One that is locked here stays expired: an extend that waits for it reads its clock later.
    select count(*) into v_leased from {q}deliveries d where d.group_id = p_group and d.state = 3;
    select count(*) into v_expired
    from (
      select from {q}deliveries d
      where d.group_id = p_group and d.state = 3 and d.at < v_now
      order by d.at limit 1000 for update skip locked
    ) e;
    v_limit := greatest(least(p_limit, p_cap - v_leased + v_expired), 0);
  end if;
  v_begun := clock_timestamp();
  loop
    -- SKIP LOCKED: claims never wait for each other, nor for a settlement, and get distinct rows.
    with ready as materialized (
      select d.ctid, d.seq, d.priority, d.state from {q}deliveries d
      where d.group_id = p_group and d.state = 0 and (d.priority, d.seq) >= (v_priority, v_seq)
      order by d.priority, d.seq limit v_limit for update skip locked
    ), ended as materialized (
      select d.ctid, d.seq, d.priority, d.state from {q}deliveries d
      where d.group_id = p_group and d.state = 1 and d.at <= v_now and d.at >= v_since
      order by d.at limit 1000 for update skip locked
    ), expired as materialized (
      select d.ctid, d.seq, d.priority, d.state from {q}deliveries d
      where d.group_id = p_group and d.state = 3 and d.at < v_now and d.at >= v_since
      order by d.at limit 1000 for update skip locked
    )
    select
      array_agg(c.ctid) filter (where c.place <= v_limit),
      array_agg(c.ctid) filter (where c.place > v_limit and c.state <> 0)
    into v_taken, v_ready
    from (
      select u.ctid, u.state, row_number() over (order by u.priority, u.seq) as place
      from (table ready union all table ended union all table expired) u
    ) c;
    exit when p_floor_age is null or v_since = 0 or cardinality(v_taken) >= v_limit;
    v_priority := -2147483648;
    v_seq := 0;
    v_since := 0;
  end loop;
  v_took := extract(epoch from clock_timestamp() - v_begun) * 1000000;
  if v_ready is not null then
    update {q}deliveries d set state = 0 where d.ctid = any(v_ready);
  end if;
  if v_taken is not null then
    return query
    with leased as (
      update {q}deliveries d
      set state = 3,
        at = v_now + p_lease,
        token = gen_random_uuid(),
        attempts = d.attempts + (d.token is not null)::int
      where d.ctid = any(v_taken)
      returning d.seq, d.token, d.attempts, d.error, d.key, d.priority
    )
    select l.seq, l.token::text, l.attempts, l.error, m.id, l.key, coalesce(m.payload, ''),
      m.headers, l.priority, coalesce(m.deliver_at, 0), coalesce(m.published_at, 0),
      null::bigint[]
    from leased l left join {q}messages m on m.seq = l.seq
    order by l.priority, l.seq;
  end if;
  if coalesce(cardinality(v_taken), 0) < p_limit then
    select greatest(d.at - v_now, 0) into v_next
    from {q}deliveries d
    where d.group_id = p_group and d.state = 1
    order by d.at limit 1;
  end if;
  return query
  select null::bigint, null::text, null::int, null::text, null::text, null::text, null::bytea,
    null::text, null::int, v_next, v_took, v_held;
end $$;

-- Says of each group, in the order given, whether a claim could find something now, and in how many
-- µs the group's next timer ends. Reads the beginning of four small indexes, and locks nothing.
-- name: peek_v1
create or replace function {q}peek_v1(p_groups int[], p_now bigint default null)
returns table (may_claim boolean, next_due bigint) language plpgsql stable
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  v_now bigint := {q}now_v1(p_now);
begin
  return query
  select
    coalesce(t.next <= v_now, false)
      or coalesce((
        select true from {q}deliveries d where d.group_id = g.id and d.state = 0 limit 1
      ), false)
      or coalesce((
        select d.at < v_now from {q}deliveries d
        where d.group_id = g.id and d.state = 3 order by d.at limit 1
      ), false)
      or coalesce((
        select true from {q}deliveries d where d.group_id = g.id and d.state in (5, 6) limit 1
      ), false),
    t.next - v_now
  from unnest(p_groups) with ordinality as g(id, place)
  left join lateral (
    select d.at as next from {q}deliveries d
    where d.group_id = g.id and d.state = 1 order by d.at limit 1
  ) t on true
  order by g.place;
end $$;
