-- Every operation of the lock, in one source, so that a server that has forgotten its scripts has forgotten all of them.
--
-- KEYS  1: C, the counter of fencing tokens; 2: W, until when somebody may be waiting; then the key of each item; then the
--       queues of those keys, of all items but `renew`.
-- ARGV  1: how many items; 2: '', or `floor aim`: the least number for fencing tokens, and one to begin with if it is at
--       most 10 ms ahead of the counter (0 for none); 3: what the caller's places have in common: `life sent channel`,
--       or '' if nobody may wait; then each item:
--         acquire  token, ttl in ms, size of the block, for how long in ms the key is kept from a grant on; takes a place
--                  if the key is busy
--         try      token, ttl, size of the block
--         take     the same, from the holder whose token follows
--         renew    token, ttl in ms, size of the block of new fencing tokens (0 for none), ms that were found to be left
--                  and are too many (0 for none)
--         release  token
--         part     token, how long to keep the key in ms (0 to delete it), 1 if it is to be granted to nobody
--         inspect
--         force    1 to remove foreign holders too
-- Reply for each item: HELD first-fence size was-free | BUSY pttl kind position | RENEWED pttl first-fence size | RELEASED | GONE |
--       ERROR message; then 1 if PUBLISH was refused, or 0; and if ARGV[2] is not empty, TIME in µs. The kind of a
--       holder is 0 for a token of ours, 1 for a foreign one, 2 for one of ours that the key was granted to and that may
--       not have heard of it.
--
-- A call of nothing but plain renewals has a form of its own, since there may be many thousands a second: KEYS the keys;
-- ARGV 'renew', then for each its token and the ttl in ms. Reply for each: 0 if the ttl is left now, the ms that are left
-- if they are more, -1 for GONE, or the message of an error.
-- So has one of nothing but releases: KEYS as above; ARGV 'release', then the token of each. Reply as above.
--
-- C is an empty stream. Its last id `ms-seq`, with seq <= 999, is the last fencing token: ms * 1000 + seq.
-- W is a time in ms; no place of any queue ends later.
-- A queue is a hash. `first` and `next` bound the tickets; a token's own field is its ticket, and `#ticket` is its place:
-- `token end life T sent block channel`. It is live until `end`, a time in ms, unless that is more than `life` ahead. T: for
-- how many ms the key is kept from the grant on. `sent`: a time of the caller's clock, which the message of the grant repeats.
-- `block`: how many fencing tokens it wants. The channel is empty if it cannot be told. `granted` is the token that the
-- key was granted to last, until it has come.
-- A grant is told on the channel by `token key sent T first-fence size`.
--
-- Invariants (of this script; `free.rs` takes a free key without a look at its queue)
-- * A key holds a token or nothing. It is written only if it is free and nobody with a live place comes first, or holds
--   the item's own token (or the one to take it from). No key that is not a string is overwritten.
-- * A key that is free, or about to be, goes to the first live place in the same step, with a number drawn for it; the
--   place goes with the grant. So a key is not free while a live place exists, but after an expiry, lost data, a
--   foreign DEL, a quiet release, or a grant that was refused (memory).
-- * PUBLISH comes after the SET of its grant, and its channel has a subscriber here, or the next place is granted. It does not
--   go to replicas.
-- * Per item: reads and checks first, then writes, PUBLISH last, each through pcall where it may be refused, so that an
--   error leaves nothing half done and spoils no other item. (A Lua error would keep what was written before it.)
-- * A fencing token is drawn before the key is written, so that a key is never held without a number of its own.
-- * W is written before a place that it would not cover, so that every place is seen.
-- * No clock of a caller decides who holds; the server's decides only who may be passed over. (The floor and the
--   aim of a caller, who has seen several nodes, only raise fencing tokens.)
-- Where nobody waits it is three commands for an acquire, and two for all releases of a call: each costs as much as the rest
-- together. (Acquires of free keys need no script; see `free.rs`.)

local ERROR, HELD, BUSY, RENEWED, RELEASED, GONE = 0, 1, 2, 3, 4, 5
local OURS, FOREIGN, RESERVED = 0, 1, 2
local MARK = 'lock-core:1:' -- what our tokens begin with
local MOST = 2 ^ 53 -- Lua counts no further without gaps
local call, pcall = redis.call, redis.pcall
local KEYS, ARGV = KEYS, ARGV -- quicker to look up

-- The error of a server that takes no writes, found by one that changes nothing. A replica that lacks what its primary has must
-- not say that it is gone.
local function is_read_only(key)
  local reply = pcall('HDEL', key, MARK)
  return type(reply) == 'table' and string.find(reply.err, 'READONLY', 1, true) and reply
end

local got -- what W and the keys of the items held at first
if ARGV[1] == 'release' then
  -- Where nobody waits, it is a comparison and one command.
  local replies, ours = {}, {}
  got = call('MGET', unpack(KEYS, 2, #ARGV + 1))
  for i = 2, #ARGV do
    if got[i] == ARGV[i] then
      ours[#ours + 1], replies[i - 1] = KEYS[i + 1], RELEASED
    else
      replies[i - 1] = GONE
    end
  end
  if not got[1] and (#ours == 0 or type(pcall('DEL', unpack(ours))) ~= 'table') then
    local refused = #ours == 0 and is_read_only(KEYS[2])
    if refused then return refused end
    replies[#ARGV] = 0
    return replies
  end
end

-- The error in a reply, if it is one, with the command, which Redis 7 leaves out.
local function refusal(reply, command)
  return type(reply) == 'table' and reply.err and reply.err .. ' (' .. command .. ')'
end

-- Pushes an expiry out to a ttl from now, and never in. Works without memory to spare. Returns 0 if the ttl is left now, the
-- ms that are left if they are more, or an error.
local gt = 'GT' -- what Redis 7 brought
local function push_out(key, ttl)
  if gt then
    local pushed = pcall('PEXPIRE', key, ttl, gt)
    if pushed == 1 then return 0 end
    if pushed ~= 0 then gt = nil end
  end
  local left = call('PTTL', key)
  if left >= tonumber(ttl) then return left end
  return 0, refusal(pcall('PEXPIRE', key, ttl), 'PEXPIRE')
end

if ARGV[1] == 'renew' then
  local got, replies = call('MGET', unpack(KEYS)), {}
  local gone
  for i = 1, #KEYS do
    local key, ttl = KEYS[i], ARGV[2 * i + 1]
    if got[i] ~= ARGV[2 * i] then
      replies[i], gone = -1, key
    elseif gt and pcall('PEXPIRE', key, ttl, gt) == 1 then
      replies[i] = 0 -- as push_out does, without a function's cost
    else
      local left, failed = push_out(key, ttl)
      replies[i] = failed or left
    end
  end
  return gone and is_read_only(gone) or replies
end

if ARGV[1] == 'release' then
  local of_each = {}
  for i = 2, #ARGV do of_each[2 * i - 3], of_each[2 * i - 2] = 'release', ARGV[i] end
  ARGV = { #ARGV - 1, '', '', unpack(of_each) }
end

local items = tonumber(ARGV[1])
local floor, aim = string.match(ARGV[2], '^(%d+) (%d+)$')
floor, aim = tonumber(floor) or 0, tonumber(aim) or 0

got = got or call('MGET', unpack(KEYS, 2, items + 2))
local waiting = tonumber(got[1]) or 0
if not (waiting < MOST) then waiting = 0 end

local now = 0 -- the time in ms, where it matters: somebody may be waiting, or takes a place
local micros = 0
local function look_at_clock(call)
  local time = call('TIME')
  if time.err then return refusal(time, 'TIME') end
  micros = time[1] * 1000000 + time[2]
  now = math.floor(micros / 1000)
end
if waiting > 0 or ARGV[2] ~= '' then look_at_clock(call) end
if waiting <= now then waiting = 0 end

-- Draws a block of fencing tokens from the counter: its first, its size, or an error. A block ends with its millisecond, so
-- that the counter leads the clock by less than one.
local function draw(size)
  local id = pcall('XADD', KEYS[1], 'MAXLEN', '0', '*', '', '')
  if type(id) == 'table' then return nil, nil, refusal(id, 'XADD') end
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  ms, seq = tonumber(ms), tonumber(seq)
  -- Where seq is too large, the clock was set back, or a million were drawn in a second: the next ms begins.
  local first = ms * 1000 + math.min(seq, 1000)
  if aim <= first + 10000 then first = math.max(first, aim) end
  first = math.max(first, floor)
  size = math.min(size, 1000 - first % 1000)
  local last = first + size - 1
  if not (last < MOST) then return nil, nil, 'ERR ' .. KEYS[1] .. ' has counted too far, delete it (XADD)' end
  if seq > 999 or last > ms * 1000 + seq then
    id = string.format('%.0f-%.0f', math.floor(last / 1000), last % 1000) -- not tostring: it would lose digits
    local failed = refusal(pcall('XADD', KEYS[1], 'MAXLEN', '0', id, '', ''), 'XADD')
    if failed then return nil, nil, failed end
  end
  return first, size
end

-- Where nobody waits, one acquire of a free key needs nothing of what follows.
if items == 1 and waiting == 0 and not got[2] and (ARGV[4] == 'acquire' or ARGV[4] == 'try') then
  local first, size = draw(tonumber(ARGV[7]))
  -- MGET shows what is not a string as free.
  local set = first and pcall('SET', KEYS[3], ARGV[5], 'PX', ARGV[6], 'NX')
  if set and not set.err then return { HELD, first, size, 1, 0, ARGV[2] ~= '' and micros or nil } end
end

local written = {} -- what this call has put at a key: a token, or false
local refused = 0

-- The fencing tokens of an item: the first, how many, or an error. Numbers have to rise per key only, so that keys that have
-- had none in this call share what was drawn last.
local drawn, drawn_size
local has_drawn = {}
local function take_fences(key, size)
  if not drawn or has_drawn[key] or size > drawn_size then
    local failed
    drawn, drawn_size, failed = draw(size)
    if failed then return nil, nil, failed end
    size = drawn_size
  end
  has_drawn[key] = true
  return drawn, size
end

-- What a queue says: the bounds of its tickets, the ticket of a token, and the token that the key was granted to last.
local function look(queue, token)
  local found = pcall('HMGET', queue, 'first', 'next', token, 'granted')
  return tonumber(found[1]), tonumber(found[2]), tonumber(found[3]), found[4]
end

-- Gives a token a place at the end of the queue, or refreshes the one that it has. Returns its position, or 0 and perhaps an
-- error; then the token that the key was granted to last.
local function keep_place(queue, token, lasts, block)
  local life, sent, channel = string.match(ARGV[3], '^(%d+) (%d+) (.*)$')
  local failed = now == 0 and look_at_clock(pcall)
  if failed then return 0, failed end
  local ends = now + tonumber(life)
  if ends > waiting then
    -- Somewhat later, so that not every place writes it.
    local until_then = ends + 500
    if refusal(pcall('SET', KEYS[2], until_then, 'PX', until_then - now), 'SET') then return 0 end
    waiting = until_then
  end
  local first, following, ticket, granted = look(queue, token)
  local place = table.concat({ token, ends, life, lasts, sent, block, channel }, ' ')
  ticket = ticket or following or 1
  first = first or ticket
  -- Positions count from the first who is there still.
  while first < ticket and not pcall('HGET', queue, '#' .. first) do first = first + 1 end
  following = math.max(following or 0, ticket + 1)
  local reply = pcall('HSET', queue, 'first', first, 'next', following, token, ticket, '#' .. ticket, place)
  if type(reply) == 'table' then return 0, nil, granted end
  pcall('PEXPIREAT', queue, waiting + 1000)
  return ticket - first + 1, nil, granted
end

-- Deletes a queue in which nothing is left.
local function drop_if_empty(queue)
  local left = pcall('HLEN', queue)
  if type(left) == 'number' and left <= 2 then pcall('DEL', queue) end
end

-- Removes that the key was granted to the token that it was granted to last.
local function forget_grant(queue)
  pcall('HDEL', queue, 'granted')
  drop_if_empty(queue)
end

-- Removes the place of a token. Returns the bounds of the queue, perhaps an error, and whether the key was granted to
-- the token last: if nobody else is granted it, that is to be forgotten.
local function leave(queue, token)
  local first, following, ticket, granted = look(queue, token)
  local failed = ticket and refusal(pcall('HDEL', queue, token, '#' .. ticket), 'HDEL')
  if ticket then drop_if_empty(queue) end
  return first, following, failed, granted == token
end

-- Says on the channel of a place that the key was granted to it. Returns whether its owner may come.
local function tell(channel, key, ends, token, sent, lasts, number, size)
  if channel == '' then return true end -- it comes by itself
  local message = table.concat({ token, key, sent, lasts, string.format('%.0f', number), size }, ' ')
  -- Not on replicas, who would tell it even where it is not heard here and the next place is granted: after a switchover,
  -- waiters may still listen at the former primary.
  if redis.set_repl then redis.set_repl(redis.REPL_NONE) end
  -- The channels of a cluster's slot begin with its tag.
  local publish = string.sub(channel, 1, 1) == '{' and 'SPUBLISH' or 'PUBLISH'
  local heard = pcall(publish, channel, message)
  if redis.set_repl then redis.set_repl(redis.REPL_ALL) end
  if type(heard) ~= 'table' then return heard > 0 end
  -- Its next check finds the grant, and comes before the place would have ended.
  refused = 1
  pcall('PEXPIRE', key, math.max(lasts, ends - now))
  return true
end

-- Gives a key to the first live place from a ticket on and before another. The key is free, or holds a token that is
-- `over`. Places that are not live are dropped. Returns whether somebody got it; if not, the key is as before, or free.
local function grant(queue, key, over, first, following, before)
  if not first or not following then return false end
  local is_set = false
  for ticket = first, before - 1 do
    local place = call('HGET', queue, '#' .. ticket)
    local token, ends, life, lasts, sent, block, channel =
      string.match(place or '', '^(%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (.*)$')
    ends = tonumber(ends) or 0
    if place and not (now < ends and ends - now <= tonumber(life)) then
      pcall('HDEL', queue, '#' .. ticket, string.match(place, '^%S*'))
    elseif place then
      local number, size = take_fences(key, tonumber(block))
      local set
      if number and (over or is_set) then
        set = pcall('SET', key, token, 'PX', lasts)
      elseif number then
        -- MGET shows what is not a string as free.
        set = pcall('SET', key, token, 'PX', lasts, 'NX')
      end
      if not set or set.err then break end
      is_set, written[key] = true, token
      pcall('HDEL', queue, token, '#' .. ticket)
      pcall('HSET', queue, 'first', ticket + 1, 'granted', token)
      if tell(channel, key, ends, token, sent, lasts, number, size) then return true end
    end
    if ticket == following - 1 then pcall('DEL', queue) end
  end
  if is_set then
    pcall('DEL', key)
    written[key] = false
  end
  return false
end

-- The kind of the holder that an acquire has found.
local function kind_of(held, granted)
  if string.sub(held, 1, #MARK) ~= MARK then return FOREIGN end
  return held == granted and RESERVED or OURS
end

local replies, r = {}, 0
local is_gone = false
local function reply(code, one, two, three)
  is_gone = is_gone or code == GONE
  replies[r + 1], replies[r + 2], replies[r + 3], replies[r + 4] = code, one, two, three
  r = r + (three and 4 or two and 3 or one and 2 or 1)
end

-- Keys that are released and that nobody waits for are deleted together, before the next item of one of them.
local released, is_released, said_at = {}, {}, {}
local function delete_released()
  if #released > 0 and type(pcall('DEL', unpack(released))) == 'table' then
    -- Refused, if only for one of them.
    for i = #released, 1, -1 do
      local failed = refusal(pcall('DEL', released[i]), 'DEL')
      if failed then
        replies[said_at[i]] = ERROR
        table.insert(replies, said_at[i] + 1, failed)
        r = r + 1
        written[released[i]] = nil
      end
    end
  end
  released, is_released, said_at = {}, {}, {}
end

local a, q = 4, items + 2
for i = 1, items do
  local operation, token, key = ARGV[a], ARGV[a + 1], KEYS[i + 2]
  local queue
  if operation ~= 'renew' then
    q = q + 1
    queue = KEYS[q]
  end
  if is_released[key] then delete_released() end
  local held = written[key]
  if held == nil then held = got[i + 1] end

  if operation == 'acquire' or operation == 'try' or operation == 'take' then
    local may_take, ticket, granted
    if operation == 'take' then
      may_take = held == token or held == ARGV[a + 4]
    else
      if not held and waiting > 0 then
        local first, following
        first, following, ticket, granted = look(queue, token)
        if grant(queue, key, false, first, following, ticket or following) then held = written[key] end
      end
      may_take = not held or held == token
    end
    if may_take then
      local first, size, failed = take_fences(key, tonumber(ARGV[a + 3]))
      local set
      if failed then
        set = { err = failed }
      elseif held then
        local ttl = ARGV[a + 2]
        -- It may be late, and the lease extended since.
        if held == token then ttl = math.max(ttl, call('PTTL', key)) end
        set = pcall('SET', key, token, 'PX', ttl)
      else
        -- MGET shows what is not a string as free.
        set = pcall('SET', key, token, 'PX', ARGV[a + 2], 'NX') or { err = 'WRONGTYPE the key holds no string' }
      end
      if set.err then
        reply(ERROR, failed or refusal(set, 'SET'))
      else
        written[key] = token
        if waiting > 0 and (held or ticket or granted == token) then
          local _, _, _, was_granted = leave(queue, token)
          if was_granted then forget_grant(queue) end
        end
        reply(HELD, first, size, held and 0 or 1)
      end
    elseif operation == 'take' then
      reply(GONE)
    else
      local left, position, failed = call('PTTL', key), 0
      if operation == 'acquire' then
        position, failed, granted = keep_place(queue, token, ARGV[a + 4], ARGV[a + 3])
      elseif waiting > 0 then
        granted = select(4, look(queue, token))
      end
      if failed then reply(ERROR, failed) else reply(BUSY, left, kind_of(held, granted), position) end
    end
    a = a + (operation == 'try' and 4 or 5)

  elseif operation == 'release' or operation == 'part' then
    local after, quiet = '0', false
    if operation == 'part' then
      after, quiet = ARGV[a + 2], ARGV[a + 3] == '1'
      a = a + 2
    end
    a = a + 2
    local first, following, failed, was_granted
    local passed = false
    -- Else it might be granted to itself.
    if waiting > 0 then first, following, failed, was_granted = leave(queue, token) end
    if held ~= token then
      if not held and not quiet then passed = grant(queue, key, false, first, following, following) end
      if failed then reply(ERROR, failed) else reply(GONE) end
    elseif after ~= '0' then
      local failed = refusal(pcall('PEXPIRE', key, after), 'PEXPIRE')
      if failed then reply(ERROR, failed) else reply(RELEASED) end
    elseif waiting == 0 then
      reply(RELEASED)
      released[#released + 1], said_at[#said_at + 1] = key, r
      written[key], is_released[key] = false, true
    elseif not quiet and grant(queue, key, true, first, following, following) then
      passed = true
      reply(RELEASED)
    else
      local failed = refusal(pcall('DEL', key), 'DEL')
      if not failed then written[key] = false end
      if failed then reply(ERROR, failed) else reply(RELEASED) end
    end
    if was_granted and not passed then forget_grant(queue) end

  elseif operation == 'renew' then
    -- Never shortens, but for an expiry that the owner has found to be too far ahead (this clock was set back), if it is
    -- still that one.
    if held ~= token then
      reply(GONE)
    else
      local ttl, found = ARGV[a + 2], tonumber(ARGV[a + 4])
      local left, failed, mends = 0
      if found > 0 then
        local too_far = call('PTTL', key)
        mends = too_far <= found and too_far > found - 2000
      end
      if mends then failed = refusal(pcall('PEXPIRE', key, ttl), 'PEXPIRE') else left, failed = push_out(key, ttl) end
      if failed then
        reply(ERROR, failed)
      else
        local first, size = 0, 0
        if ARGV[a + 3] ~= '0' then first, size = take_fences(key, tonumber(ARGV[a + 3])) end
        reply(RENEWED, left > 0 and left or tonumber(ttl), first or 0, size or 0)
      end
    end
    a = a + 5

  else
    -- What is not a string is an error here.
    held = pcall('GET', key)
    if type(held) == 'table' then
      reply(ERROR, refusal(held, 'GET'))
    elseif operation == 'inspect' then
      if held then reply(BUSY, call('PTTL', key), kind_of(held), 0) else reply(GONE) end
    elseif not held or (token == '0' and kind_of(held) == FOREIGN) then
      reply(GONE)
    else
      local failed = refusal(pcall('DEL', key), 'DEL')
      if failed then
        reply(ERROR, failed)
      else
        written[key] = false
        local first, following
        if waiting > 0 then first, following = look(queue, '') end
        grant(queue, key, false, first, following, following)
        reply(RELEASED)
      end
    end
    a = a + (operation == 'force' and 2 or 1)
  end
end
delete_released()
local read_only = is_gone and is_read_only(KEYS[2])
if read_only then return read_only end
replies[r + 1] = refused
if ARGV[2] ~= '' then replies[r + 2] = micros end
return replies
