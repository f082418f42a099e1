"""From a plan to places: Ray's nodes and tables, seats, placement groups, and a look at each pod before the launch.

It ends when the supervisor takes over, and begins by clearing what an earlier attempt left.  Which rank goes where is
decided by pure functions (``placement``, ``seating``, ``groups``, ``rank_map``); what is asked of Ray is asked in
``ray_cluster`` and ``clearing``.
"""
