-- Registering groups, purging, counting. See publish_v1.sql first.

-- Registers a group unless it exists; p_earliest: with a delivery for each retained message.
-- lock_timeout: it waits for open publishers of the topic, and one may be the caller's own.
-- name: ensure_group_v1
create or replace function {q}ensure_group_v1(
  p_topic text, p_group text, p_earliest boolean, p_now bigint default null
) returns void language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off set lock_timeout = '10s' as $$
declare
  v_topic int;
  v_group int;
  v_now bigint;
begin
  perform {q}require_read_committed_v1();
  -- Before anything is read: whoever published and committed is seen by the statements below,
  -- whoever is about to publish waits here and then sees the group. An update and not a lock:
  -- a publisher with an older snapshot must fail, not look past this.
  insert into {q}topics (name) values (p_topic) on conflict (name) do nothing;
  update {q}topics t set name = t.name where t.name = p_topic returning t.id into v_topic;
  v_now := {q}now_v1(p_now);
  insert into {q}groups (topic_id, name, created_at) values (v_topic, p_group, v_now)
  on conflict (topic_id, name) do nothing
  returning id into v_group;
  if v_group is null or not p_earliest then
    return;
  end if;
  -- A purge of this topic is over, or leaves it alone until this commits: see purge_messages_v1.
  insert into {q}deliveries (group_id, seq, state, priority, at, key)
  select v_group, b.seq,
    case when b.behind then 2 when b.deliver_at > v_now then 1 else 0 end,
    b.priority,
    case when b.behind then b.deliver_at else greatest(b.deliver_at, v_now) end,
    b.key
  from (
    select m.seq, m.key, m.priority, m.deliver_at,
      m.key is not null and row_number() over (partition by m.key order by m.seq) > 1 as behind
    from {q}messages m where m.topic_id = v_topic
  ) b
  order by b.seq;
  update {q}messages m set untaken = false where m.topic_id = v_topic and m.untaken;
end $$;

-- Deletes dead deliveries that are older than p_retention. Of several janitors one works.
-- name: purge_dead_v1
create or replace function {q}purge_dead_v1(
  p_retention bigint, p_batch int, p_now bigint default null
) returns int language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  v_before bigint := {q}now_v1(p_now) - p_retention;
  v_group int;
  v_count int;
  v_gone int := 0;
begin
  if not pg_try_advisory_xact_lock(hashtext('{q}purge'), 0) then
    return 0;
  end if;
  for v_group in select g.id from {q}groups g order by g.id loop
    exit when v_gone >= p_batch;
    -- Locked before they are deleted, skipping what is locked: no deadlock with anybody.
    delete from {q}deliveries d
    where d.ctid = any(array(
      select o.ctid from {q}deliveries o
      where o.group_id = v_group and o.state = 4 and o.at < v_before
      order by o.at limit p_batch - v_gone for update skip locked
    ));
    get diagnostics v_count = row_count;
    v_gone := v_gone + v_count;
  end loop;
  return v_gone;
end $$;

-- Deletes messages that no delivery needs and that are older than their retention. A publish of
-- the same id is before it (the id is there: nothing is stored) or after it (a new message).
-- Looks at no more than p_window messages, in the order of seq from p_after on, and says where the
-- next call is to go on (0: from the start): each call would walk again what is still needed, and
-- what the calls before have left for vacuum.
-- name: purge_messages_v1
create or replace function {q}purge_messages_v1(
  p_retention bigint, p_dead_retention bigint, p_batch int, p_after bigint, p_window int,
  p_now bigint default null
) returns table (gone int, reached bigint) language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  v_now bigint := {q}now_v1(p_now);
  v_young_from bigint := v_now - least(p_retention, p_dead_retention);
  v_young bigint;
  v_seqs bigint[];
  v_old tid[];
  v_topics int[];
begin
  perform {q}require_read_committed_v1();
  gone := 0;
  reached := p_after;
  if not pg_try_advisory_xact_lock(hashtext('{q}purge'), 0) then
    return next;
    return;
  end if;
  -- Those that are too young come along, and fill the batch: messages are stored in the order of
  -- time, so nothing behind the first of them needs a look.
  select min(o.seq) filter (where o.young), array_agg(o.seq) filter (where not o.young)
  into v_young, v_seqs
  from (
    select m.seq, m.stored_at >= v_young_from as young
    from (
      select w.seq, w.topic_id, w.stored_at, w.deliver_at, w.untaken from {q}messages w
      where w.seq > p_after
      order by w.seq limit p_window
    ) m
    where m.stored_at >= v_young_from or (
      greatest(m.stored_at, m.deliver_at)
        < v_now - case when m.untaken then p_dead_retention else p_retention end
      and (
        select true
        from {q}groups g cross join lateral (
          select from {q}deliveries d where d.group_id = g.id and d.seq = m.seq limit 1
        ) needed
        where g.topic_id = m.topic_id limit 1
      ) is null
    )
    limit p_batch
  ) o;
  if v_young is not null then
    reached := 0;  -- all that is old enough was looked at
    v_seqs := array(select s.seq from unnest(v_seqs) as s(seq) where s.seq < v_young);
  elsif cardinality(v_seqs) = p_batch then
    reached := (select max(s.seq) from unnest(v_seqs) as s(seq));
  else
    reached := coalesce((
      select m.seq from {q}messages m where m.seq > p_after
      order by m.seq offset p_window - 1 limit 1
    ), 0);
  end if;
  v_old := array(
    select m.ctid from {q}messages m where m.seq = any(v_seqs) order by m.seq
    for update skip locked
  );
  -- A group that is being registered has made deliveries that the statement above could not see,
  -- or will: the topic is left alone. Others cannot be registered from here to the commit. One
  -- registered in between is seen by the statement below: it looks again.
  v_topics := array(
    select t.id from {q}topics t
    where t.id in (select m.topic_id from {q}messages m where m.ctid = any(v_old))
    order by t.id for share skip locked
  );
  delete from {q}messages m
  where m.ctid = any(v_old) and m.topic_id = any(v_topics)
    and (
      select true
      from {q}groups g cross join lateral (
        select from {q}deliveries d where d.group_id = g.id and d.seq = m.seq limit 1
      ) needed
      where g.topic_id = m.topic_id limit 1
    ) is null;
  get diagnostics gone = row_count;
  return next;
end $$;

-- Counts a group's deliveries. A lease that ran out is leased until somebody claims it, also
-- where a claim has made it ready; a timer that ended is ready before a claim has made it so.
-- name: count_v1
create or replace function {q}count_v1(p_group int, p_now bigint default null)
returns table (
  ready bigint, scheduled bigint, retrying bigint, waiting bigint, leased bigint, dead bigint,
  oldest_ready_age bigint
) language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  v_now bigint := {q}now_v1(p_now);
begin
  return query
  select r.due + t.due, t.scheduled, t.retrying, w.waiting, l.leased + r.expired,
    d.dead + o.dead, v_now - least(r.since, t.since)
  from (
    select count(*) filter (where x.token is null) as due,
      count(x.token) as expired,
      min(x.at) filter (where x.token is null) as since
    from {q}deliveries x where x.group_id = p_group and x.state = 0
  ) r, (
    select count(*) filter (where x.at <= v_now) as due,
      count(*) filter (where x.at > v_now and x.attempts = 0) as scheduled,
      count(*) filter (where x.at > v_now and x.attempts > 0) as retrying,
      min(x.at) filter (where x.at <= v_now) as since
    from {q}deliveries x where x.group_id = p_group and x.state = 1
  ) t, (
    select count(*) as waiting from {q}deliveries x where x.group_id = p_group and x.state = 2
  ) w, (
    select count(*) as leased from {q}deliveries x where x.group_id = p_group and x.state = 3
  ) l, (
    select count(*) as dead from {q}deliveries x where x.group_id = p_group and x.state = 4
  ) d, (
    select count(*) filter (where x.state = 6) as dead
    from {q}deliveries x where x.group_id = p_group and x.state in (5, 6)
  ) o;
end $$;
