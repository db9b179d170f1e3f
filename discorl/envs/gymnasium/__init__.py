"""Gymnasium environments of any kind, as environments on tensors."""

from discorl.envs.gymnasium.env import GymnasiumEnv
from discorl.envs.gymnasium.make import as_env, function_env, gymnasium_env
from discorl.envs.gymnasium.vector import make_vector

__all__ = ["GymnasiumEnv", "as_env", "function_env", "gymnasium_env", "make_vector"]
