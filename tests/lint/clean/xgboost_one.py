# run: python {name}
import numpy as np
import xgboost as xgb
from catboost import CatBoostClassifier

data = xgb.DMatrix(np.zeros((4, 2)), label=np.zeros(4))
xgb.train({"device": "cuda", "tree_method": "hist", "max_depth": 1}, data, num_boost_round=1)
xgb.train({"device": "cuda:0", "gpu_id": 0}, data)
CatBoostClassifier(task_type="GPU", devices="0", iterations=1)
