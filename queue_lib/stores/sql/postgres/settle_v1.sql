-- The ends of a claim: acknowledge, kill, give back, renew. See publish_v1.sql first.

-- Locks the deliveries that claims hold, in seq order: a heartbeat and an acknowledgement of one
-- batch wait for each other, they do not deadlock. What holds is the token: a lease that ran out
-- is still held until somebody claims, and stays so (as state 0) when a claim has seen it run out
-- and took others. Compared as text: a forged token is not an error, it does not match.
-- name: hold_v1
create or replace function {q}hold_v1(
  p_group int, p_seqs bigint[], p_tokens text[], out o_rows tid[], out o_seqs bigint[]
) language plpgsql as $$
begin
  select array_agg(h.ctid), coalesce(array_agg(h.seq), '{}') into o_rows, o_seqs
  from (select * from unnest(p_seqs, p_tokens) as a(seq, token) order by a.seq) a
  cross join lateral (
    select d.ctid, d.seq from {q}deliveries d
    where d.group_id = p_group and d.seq = a.seq
      and d.state in (0, 3) and d.token::text = a.token
    for update
  ) h;
end $$;

-- Ends deliveries that the caller has locked and passes their lanes on. p_free: the stripes that
-- the caller holds, got in an earlier statement: no publisher is at work there, so what the
-- statements here see of such a lane is all there is.
-- On other stripes a visible follower is still the right one: publishers of a lane come one
-- after the other, so it is older than whatever is not visible yet. Without one, nobody can tell
-- yet: the delivery becomes 5 or 6. It is over for its consumer, is still the lane's head for
-- publishers, and the next claim passes the lane on.
-- name: finish_v1
create or replace function {q}finish_v1(
  p_group int, p_rows tid[], p_free int[], p_error text, p_now bigint
) returns void language plpgsql as $$
declare
  v_done tid[];
  v_dead tid[];
  v_owing tid[];
  v_followers tid[];
begin
  select
    array_agg(e.ctid) filter (where e.settled and not e.dead),
    array_agg(e.ctid) filter (where e.settled and e.dead),
    array_agg(e.ctid) filter (where not e.settled and e.state not in (5, 6)),
    array_agg(e.follower) filter (where e.follower is not null)
  into v_done, v_dead, v_owing, v_followers
  from (
    select d.ctid, d.state, w.ctid as follower,
      p_error is not null or d.state = 6 as dead,
      d.key is null or w.ctid is not null or {q}stripe_v1(d.key) = any(p_free) as settled
    from {q}deliveries d
    left join lateral (
      select n.ctid from {q}deliveries n
      where n.group_id = p_group and n.key = d.key and n.state = 2
      order by n.seq limit 1 for update
    ) w on true
    where d.ctid = any(p_rows)
  ) e;
  -- The heads go first: two live ones of a lane, even for a moment, are a unique violation.
  if v_done is not null then
    delete from {q}deliveries d where d.ctid = any(v_done);
  end if;
  if v_dead is not null or v_owing is not null then
    update {q}deliveries d
    set state = case when d.ctid = any(v_dead) then 4 when p_error is null then 5 else 6 end,
      at = case when d.state = 6 then d.at else p_now end,
      attempts = d.attempts + (p_error is not null)::int,
      token = null,
      error = coalesce(p_error, d.error)
    where d.ctid = any(v_dead || v_owing);
  end if;
  if v_followers is not null then
    update {q}deliveries d
    set state = case when d.at > p_now then 1 else 0 end, at = greatest(d.at, p_now)
    where d.ctid = any(v_followers);
  end if;
end $$;

-- Completes (p_error null) or kills what the claims hold; returns the seqs that were held.
-- p_keys: their keys, null if none has one.
-- name: settle_v1
create or replace function {q}settle_v1(
  p_group int, p_seqs bigint[], p_tokens text[], p_keys text[], p_error text,
  p_now bigint default null
) returns bigint[] language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  v_lanes int;
  v_free int[] := '{}';
  v_rows tid[];
  v_held bigint[];
begin
  perform {q}require_read_committed_v1();
  -- Tried, never waited for: a publisher's transaction may stay open for long. In a statement of
  -- its own, before the snapshot that looks for followers: otherwise the publisher sees a live
  -- head, this does not see the new follower, and the lane stands still for ever.
  if p_keys is not null then
    select {q}lanes_v1(g.topic_id) into v_lanes from {q}groups g where g.id = p_group;
    v_free := array(
      select s.stripe
      from (
        select distinct {q}stripe_v1(k.key) as stripe
        from unnest(p_keys) as k(key) where k.key is not null
      ) s
      where pg_try_advisory_xact_lock_shared(v_lanes, s.stripe)
    );
  end if;
  select h.o_rows, h.o_seqs into v_rows, v_held from {q}hold_v1(p_group, p_seqs, p_tokens) h;
  if p_keys is null and p_error is null then
    delete from {q}deliveries d where d.ctid = any(v_rows);
  else
    perform {q}finish_v1(p_group, v_rows, v_free, p_error, {q}now_v1(p_now));
  end if;
  return v_held;
end $$;

-- Gives claims back, due in p_backoff µs; a null p_error keeps the text that is there. The head
-- of a lane stays its head: no lane lock.
-- name: requeue_v1
create or replace function {q}requeue_v1(
  p_group int, p_seqs bigint[], p_tokens text[], p_backoff bigint, p_error text, p_spend int,
  p_now bigint default null
) returns bigint[] language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  v_rows tid[];
  v_held bigint[];
begin
  perform {q}require_read_committed_v1();
  select h.o_rows, h.o_seqs into v_rows, v_held from {q}hold_v1(p_group, p_seqs, p_tokens) h;
  update {q}deliveries d
  set state = case when p_backoff > 0 then 1 else 0 end,
    at = {q}now_v1(p_now) + p_backoff,
    attempts = d.attempts + p_spend,
    token = null,
    error = coalesce(p_error, d.error)
  where d.ctid = any(v_rows);
  return v_held;
end $$;

-- Renews leases that have not run out.
-- name: extend_v1
create or replace function {q}extend_v1(
  p_group int, p_seqs bigint[], p_tokens text[], p_lease bigint, p_now bigint default null
) returns bigint[] language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  v_rows tid[];
  v_held bigint[];
  v_now bigint;
begin
  perform {q}require_read_committed_v1();
  select h.o_rows into v_rows from {q}hold_v1(p_group, p_seqs, p_tokens) h;
  -- Read behind the row locks: a lease that a capped claim has seen run out, while this waited
  -- for its lock, must not come back to life.
  v_now := {q}now_v1(p_now);
  with renewed as (
    update {q}deliveries d set at = v_now + p_lease
    where d.ctid = any(v_rows) and d.state <> 0 and d.at >= v_now
    returning d.seq
  )
  select array_agg(r.seq) into v_held from renewed r;
  return coalesce(v_held, '{}');
end $$;
